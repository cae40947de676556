"""One worker process: cells and searches come in, what they came to goes out.

It keeps the last workload that it built, for the next cell is mostly another policy on the same one. While a cell runs
it counts virtual seconds into a number that the command reads for its progress bar, and sees there that it is to stop.
Ctrl-C goes to every process of a terminal: here it means nothing, the command says what it means.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable
from dataclasses import replace
from math import inf, nextafter
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Event
from typing import NamedTuple

from router.errors import WarmrouteError
from router.testbed.simulator.outcome import SimulationOutcome
from router.testbed.simulator.run import simulate
from router.testbed.sweep.capacity import CapacityResult, CapacitySearch, search_capacity
from router.testbed.sweep.cells import CellResult, LoadLevel, SweepCell, WorkloadSource, measure_cell
from router.testbed.workloads import Workload
from router.testbed.workloads.offered_load import OfferedLoad, measure_demand, set_rate, speed_factor


class SweepStopped(WarmrouteError):
    """The command wants no more cells."""


class CachedWorkload(NamedTuple):
    source: WorkloadSource
    seed: int
    workload: Workload
    demand: OfferedLoad


class SweepWorker:
    """`passed` is told virtual seconds as they pass; `stopped` is asked as often."""

    def __init__(self, passed: Callable[[float], None], stopped: Callable[[], bool]) -> None:
        self._passed = passed
        self._stopped = stopped
        self._kept: CachedWorkload | None = None

    def done(self, task: SweepCell | CapacitySearch) -> CellResult | CapacityResult:
        if isinstance(task, SweepCell):
            rate = self.rate(task)
            return measure_cell(task, self.play(task), rate, self._last_s(task, rate))
        cell = task.cell
        if (rate := self.rate(cell)) is not None:
            cell = replace(cell, load=LoadLevel("rate", rate))
        return search_capacity(replace(task, cell=cell), self.play)

    def rate(self, cell: SweepCell) -> float | None:
        """Requests per second that come. None: a closed loop, where it depends on the answers."""
        match cell.load.kind:
            case "sessions":
                return None
            case "rate":
                return cell.load.value
            case "rho":
                asked, fleet = self._work(cell).demand, cell.scenario
                return asked.requests_per_s * speed_factor(asked, fleet.profile, fleet.instances, cell.load.value)

    def play(self, cell: SweepCell) -> SimulationOutcome:
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
            self._paced(cell, rate),
            seed=cell.seed,
            at_once=at_once,
            staggered=cell.staggered and at_once is not None,
            until_s=cell.until_s,
            progress=progress,
        )

    def _paced(self, cell: SweepCell, rate: float | None) -> Workload:
        workload = self._work(cell).workload
        return workload if rate is None else set_rate(workload, rate)

    def _last_s(self, cell: SweepCell, rate: float | None) -> float | None:
        """Just after the last request comes."""
        return None if rate is None else nextafter(self._paced(cell, rate).sessions[-1].start_s, inf)

    def _work(self, cell: SweepCell) -> CachedWorkload:
        if self._kept is None or (self._kept.source, self._kept.seed) != (cell.source, cell.seed):
            self._kept = None  # before the next one is built: two may not fit
            workload = cell.source.workload(cell.seed, lambda _: None)  # the command has told of unusable lines
            self._kept = CachedWorkload(cell.source, cell.seed, workload, measure_demand(workload))
        return self._kept


_here: list[SweepWorker] = []  # of this process, whose pool offers no other place for it


def start_worker(moved: Synchronized[float], stop: Event) -> None:
    """What a worker process does first."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.set_threshold(50_000, 20, 20)  # records and index entries live long and hold no circles: a tenth of the CPU

    def passed(seconds: float) -> None:
        with moved.get_lock():
            moved.value += seconds

    _here.append(SweepWorker(passed, stop.is_set))


def run_task(task: SweepCell | CapacitySearch) -> CellResult | CapacityResult:
    return _here[0].done(task)
