"""The default policy's grid: every cell by every policy, on all cores, kept as it comes, told as a regret table.

    python -m tests.agreement grid [--arms warm,my.yaml] [--cells REGEX] [--seeds 3] [--jobs 2] [--reduced]

One task is one cell, arm and seed. Tasks of a cell follow each other, so that a process makes the workload once. With
`--reduced` a first pass over a few cells names the arms that are worth the rest (`regret.promising`): whoever is best
in one of them, up to eight by standing, and `warm`.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from router.config.schema import PolicyConfig
from router.errors import WarmrouteError
from router.lab.simulator.outcome import RequestEnd, SimulationOutcome, compute_figures
from router.lab.simulator.run import simulate
from tests.agreement import measured, regret
from tests.agreement.cells import FIRST_PASS, Cell
from tests.agreement.ground import Effort, ground
from tests.agreement.measured import Key, Measured
from tests.agreement.windows import Window

KEPT = 8
ALWAYS = ("warm",)
AHEAD = 3
"""Tasks per process that wait in its queue: enough to keep it busy, few enough to stop soon."""


class Task(NamedTuple):
    cell: Cell
    arm: str
    policy: PolicyConfig
    seed: int
    effort: Effort

    @property
    def key(self) -> Key:
        return Key(self.cell.name, self.arm, measured.policy_digest(self.policy), self.seed, self.effort.name)

    @property
    def weight(self) -> float:
        """About what it costs, for the estimate of the time that is left: requests, and rows per decision."""
        cell = self.cell
        per_s = cell.instances * (cell.load / 40 if cell.of_agents else 2.5 * cell.load)
        requests = per_s * self.effort.lasts_s(per_s) + 80 * cell.instances
        return requests * (1 + cell.instances / 32)


def tasks(cells: Sequence[Cell], arms: dict[str, PolicyConfig], seeds: Iterable[int], effort: Effort) -> list[Task]:
    return [Task(cell, arm, policy, seed, effort) for cell in cells for seed in seeds for arm, policy in arms.items()]


def measure(task: Task) -> Measured:
    """In a process of its own; what goes wrong is part of the answer."""
    key, code, began = task.key, measured.code_digest(), time.process_time()
    try:
        served = ground(task.cell, task.seed, task.effort)
        outcome = simulate(served.scenario, task.policy, served.workload, seed=task.seed, at_once=served.at_once,
                           staggered=True, until_s=served.window.until_s)  # fmt: skip
    except (WarmrouteError, ValueError) as why:
        return Measured(key, code, time.process_time() - began, failed=f"{type(why).__name__}: {why}")
    found = compute_figures(outcome, since_s=served.window.since_s, until_s=served.window.until_s)
    if not task.cell.of_agents:
        found = found._replace(requests_per_s=begun_per_s(outcome, served.window))
    return Measured(key, code, time.process_time() - began, found, outcome.preemptions)


def begun_per_s(outcome: SimulationOutcome, window: Window) -> float:
    """Return the throughput of an open workload: the requests whose first token came within the window, per second, at
    most as many as were sent. Ends say less there: what streams at the window's edges differs by the chance of
    arrivals, by 4 % in three answers. Nobody serves an open workload faster than it comes: an arm that begins more
    works off what it left undone before the window, and is not ahead of one that left nothing.
    """
    sent = sum(window.since_s <= at_s < window.until_s for at_s in outcome.arrived_s)
    served = zip(outcome.end, outcome.arrived_s, outcome.ttft_s, strict=True)
    begun_s = (at_s + ttft_s for end, at_s, ttft_s in served if end == RequestEnd.OK)
    begun = sum(window.since_s <= at_s <= window.until_s for at_s in begun_s)
    return min(begun, sent) / (window.until_s - window.since_s)


class Grid:
    """Runs tasks that are not measured yet and remembers all. `accept_old`: other code's results count too."""

    def __init__(self, file: Path, console: Console, jobs: int, *, accept_old: bool = False) -> None:
        self.file, self.console, self.jobs = file, console, jobs
        code = measured.code_digest()
        kept = measured.read(file)
        self.results = {one.key: one for one in kept if one.failed is None and (accept_old or one.code == code)}

    def run(self, wanted: Sequence[Task], title: str) -> list[Measured]:
        """The results of all that is measured by the end; Ctrl-C ends the measuring, not the report."""
        missing = [task for task in wanted if task.key not in self.results]
        self.console.print(f"{title}: {len(wanted)} simulations, {len(wanted) - len(missing)} of them kept from before")
        shown = (TextColumn("{task.percentage:>3.0f} %"), BarColumn(24), TimeElapsedColumn(), TextColumn("left:"),
                 TimeRemainingColumn(), TextColumn("{task.description}"))  # fmt: skip
        with Progress(*shown, console=self.console, transient=True, speed_estimate_period=600) as progress:
            bar = progress.add_task("", total=sum(task.weight for task in missing))
            try:
                for task, one in _spread(missing, self.jobs):
                    self._add(one)
                    progress.update(bar, advance=task.weight, description=f"{one.key.cell} {one.key.arm}")
            except KeyboardInterrupt:
                self.console.print("interrupted: what is measured is kept, the same command goes on")
        return [self.results[task.key] for task in wanted if task.key in self.results]

    def _add(self, one: Measured) -> None:
        measured.keep(one, self.file)
        self.results[one.key] = one
        if one.failed:
            self.console.print(f"{one.key.cell} {one.key.arm}: {one.failed}", highlight=False)


def first_pass(grid: Grid, arms: dict[str, PolicyConfig], seed: int, effort: Effort) -> dict[str, PolicyConfig]:
    """The arms that stay for the whole grid."""
    seen = grid.run(tasks(FIRST_PASS, arms, [seed], effort), "first pass")
    found = regret.regrets(regret.means(score for one in seen if (score := one.score)))
    stay = regret.promising(found, KEPT, ALWAYS)
    return {arm: arms[arm] for arm in arms if arm in stay}


def _spread(missing: Sequence[Task], jobs: int) -> Iterable[tuple[Task, Measured]]:
    """As they are done. Processes are spawned: they inherit nothing and so answer alike wherever they run."""
    if jobs == 1:
        yield from ((task, measure(task)) for task in missing)
        return
    waiting: dict[Future[Measured], Task] = {}
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            for task in missing:
                waiting[pool.submit(measure, task)] = task
                while len(waiting) >= AHEAD * jobs:
                    yield from _done(waiting)
            while waiting:
                yield from _done(waiting)
        except (KeyboardInterrupt, GeneratorExit):
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _done(waiting: dict[Future[Measured], Task]) -> Iterable[tuple[Task, Measured]]:
    ready, _ = wait(waiting, return_when=FIRST_COMPLETED)
    return [(waiting.pop(future), future.result()) for future in ready]
