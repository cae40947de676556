"""Cells and searches run in parallel processes, with results in the order of the tasks.

Processes are spawned, not forked: they begin as the command did, without its memory. A failed task becomes a result
with the reason; the others continue.

A worker process retains the last workload that it built, because the next cell mostly runs another policy on the
same workload. While a cell runs, the worker adds virtual seconds to a number that the command reads for its
progress bar, and checks whether it must stop. Ctrl-C reaches every process of a terminal; workers ignore it, and
the command decides.
"""

from __future__ import annotations

import gc
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import replace
from math import inf, nextafter
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import NamedTuple

from router.errors import WarmrouteError
from router.lab.simulator.outcome import SimulationOutcome
from router.lab.simulator.run import simulate
from router.lab.sweep.capacity import CapacityResult, CapacitySearch, search_capacity
from router.lab.sweep.cells import CellFailure, CellResult, LoadLevel, SweepCell, WorkloadSource, measure_cell
from router.lab.workloads.model import Workload
from router.lab.workloads.offered_load import OfferedLoad, measure_demand, set_rate, speed_factor

LOOK_S = 0.2  # between two checks of the progress

Result = CellResult | CapacityResult | CellFailure


class SweepStopped(WarmrouteError):
    """The command has stopped the run."""


def run_parallel(
    tasks: Sequence[SweepCell | CapacitySearch], jobs: int, look: Callable[[int, float], bool]
) -> list[Result]:
    """Run `tasks` in up to `jobs` processes and return the results of the finished tasks.

    `look` receives the number of finished tasks and the total of virtual seconds. When it returns True, no further
    task begins, and running tasks are abandoned.
    """
    context = multiprocessing.get_context("spawn")
    passed, stop = context.Value("d", 0.0), context.Event()
    size = max(1, min(jobs, len(tasks)))
    with ProcessPoolExecutor(size, context, initializer=start_worker, initargs=(passed, stop)) as pool:
        futures = [pool.submit(run_task, task) for task in tasks]
        pending = set(futures)
        while pending:
            _, pending = wait(pending, LOOK_S, FIRST_COMPLETED)
            if look(len(futures) - len(pending), passed.value) and not stop.is_set():
                stop.set()
                pending = {future for future in pending if not future.cancel()}
    results = (_result(future, task) for future, task in zip(futures, tasks, strict=True))
    return [result for result in results if result is not None]


def _result(future: Future[CellResult | CapacityResult], task: SweepCell | CapacitySearch) -> Result | None:
    """Return the result of `task`; None if it did not finish."""
    if future.cancelled() or isinstance(fault := future.exception(), SweepStopped):
        return None
    if fault is not None:
        return CellFailure(task.name, f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__)
    return future.result()


class CachedWorkload(NamedTuple):
    source: WorkloadSource
    seed: int
    workload: Workload
    demand: OfferedLoad


class SweepWorker:
    """Runner of tasks. `passed` receives virtual seconds as they pass; `stopped` is checked as often."""

    def __init__(self, passed: Callable[[float], None], stopped: Callable[[], bool]) -> None:
        self._passed = passed
        self._stopped = stopped
        self._cached: CachedWorkload | None = None

    def run(self, task: SweepCell | CapacitySearch) -> CellResult | CapacityResult:
        """Run a cell or a search. Raises SweepStopped."""
        if isinstance(task, SweepCell):
            rate = self.rate(task)
            return measure_cell(task, self.play(task), rate, self._last_s(task, rate))
        cell = task.cell
        if (rate := self.rate(cell)) is not None:
            cell = replace(cell, load=LoadLevel("rate", rate))
        return search_capacity(replace(task, cell=cell), self.play)

    def rate(self, cell: SweepCell) -> float | None:
        """Return the arriving requests per second; None for a closed loop, where they depend on the answers."""
        match cell.load.kind:
            case "sessions":
                return None
            case "rate" | "recorded":
                return cell.load.value
            case "rho":
                demand, fleet = self._work(cell).demand, cell.scenario
                return demand.requests_per_s * speed_factor(demand, fleet.profile, fleet.instances, cell.load.value)

    def play(self, cell: SweepCell) -> SimulationOutcome:
        """Simulate a cell. Raises SweepStopped."""
        rate = self.rate(cell)
        at_once = max(1, round(cell.load.value * cell.scenario.instances)) if rate is None else None
        last_s = 0.0

        def progress(virtual_s: float, ended: int) -> None:
            nonlocal last_s
            if self._stopped():
                raise SweepStopped(f"{cell.name}: stopped after {ended:,} requests")
            self._passed(virtual_s - last_s)
            last_s = virtual_s

        return simulate(
            cell.scenario,
            cell.rules,
            self._set_pace(cell, rate),
            seed=cell.seed,
            at_once=at_once,
            staggered=cell.staggered and at_once is not None,
            until_s=cell.until_s,
            progress=progress,
        )

    def _set_pace(self, cell: SweepCell, rate: float | None) -> Workload:
        workload = self._work(cell).workload
        return workload if rate is None or cell.load.kind == "recorded" else set_rate(workload, rate)

    def _last_s(self, cell: SweepCell, rate: float | None) -> float | None:
        """Return a time just after the last request; None for a closed loop."""
        return None if rate is None else nextafter(self._set_pace(cell, rate).sessions[-1].start_s, inf)

    def _work(self, cell: SweepCell) -> CachedWorkload:
        if self._cached is None or (self._cached.source, self._cached.seed) != (cell.source, cell.seed):
            self._cached = None  # before the next workload is built: two may not fit into memory
            workload = cell.source.workload(cell.seed, lambda _: None)  # the command has reported unusable lines
            self._cached = CachedWorkload(cell.source, cell.seed, workload, measure_demand(workload))
        return self._cached


_worker: list[SweepWorker] = []  # this process's worker: the pool offers no other place for it


def start_worker(passed: Synchronized[float], stop: Event) -> None:
    """Prepare a worker process; the pool calls it first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(50_000, 20, 20)  # records and index entries live long and hold no cycles: a tenth of the CPU

    def add(seconds: float) -> None:
        with passed.get_lock():
            passed.value += seconds

    _worker.append(SweepWorker(add, stop.is_set))


def run_task(task: SweepCell | CapacitySearch) -> CellResult | CapacityResult:
    """Run a task in this worker process. Raises SweepStopped."""
    return _worker[0].run(task)
