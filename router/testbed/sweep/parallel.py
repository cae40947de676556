"""Cells and searches over processes: what each came to, in the order in which they were asked for, whoever ended first.

Processes are spawned, not forked: they begin as the command did, with nothing of it in memory. What fails in one is its
result, with the reason; the others go on.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait

from router.testbed.sweep import worker
from router.testbed.sweep.capacity import CapacityResult, CapacitySearch
from router.testbed.sweep.cells import CellFailure, CellResult, SweepCell
from router.testbed.sweep.worker import SweepStopped

LOOK_S = 0.2  # between two looks at what is done

Result = CellResult | CapacityResult | CellFailure


def run_parallel(
    tasks: Sequence[SweepCell | CapacitySearch],
    jobs: int,
    look: Callable[[int, float], bool],
) -> list[Result]:
    """`look` is told how many tasks are done and how many virtual seconds passed in all; where it says True, no more is
    begun, what runs is given up, and the results of what was done by then come back.
    """
    context = multiprocessing.get_context("spawn")
    moved, stop = context.Value("d", 0.0), context.Event()
    size = max(1, min(jobs, len(tasks)))
    with ProcessPoolExecutor(size, context, initializer=worker.start_worker, initargs=(moved, stop)) as pool:
        futures = [pool.submit(worker.run_task, task) for task in tasks]
        pending = set(futures)
        while pending:
            _, pending = wait(pending, LOOK_S, FIRST_COMPLETED)
            if look(len(futures) - len(pending), moved.value) and not stop.is_set():
                stop.set()
                pending = {future for future in pending if not future.cancel()}
    results = (_result(future, task) for future, task in zip(futures, tasks, strict=True))
    return [result for result in results if result is not None]


def _result(future: Future[CellResult | CapacityResult], task: SweepCell | CapacitySearch) -> Result | None:
    """None: it was not done."""
    if future.cancelled() or isinstance(fault := future.exception(), SweepStopped):
        return None
    if fault is not None:
        return CellFailure(task.name, f"{type(fault).__name__}: {fault}" if str(fault) else type(fault).__name__)
    return future.result()
