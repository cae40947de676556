"""The tasks of the operator's line: the files are followed, the experiment is looked at, the audit log is written."""

from __future__ import annotations

import asyncio

from router.clock import Clock
from router.control.control import Control
from router.control.file_watch import watch_changes
from router.scheduling.experiments.experiment import CLOSES_AT_ONCE
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks

LOOK_EVERY_S = 1.0
BEHIND_S = 0.02  # until the next look, when one was not enough


def start(control: Control, core: Scheduler, clock: Clock, tasks: Tasks, *, watch: bool) -> None:
    """`watch`: changed files take effect."""
    tasks.supervise("audit", control.audit.run)
    tasks.supervise("guard", lambda: guard_experiment(control, core, clock))
    if watch and control.paths():
        tasks.supervise("files", lambda: follow_files(control))


async def follow_files(control: Control) -> None:
    async for _ in watch_changes(control.paths):
        await control.reload_files()


async def guard_experiment(control: Control, core: Scheduler, clock: Clock) -> None:
    behind = False
    while True:
        await asyncio.sleep(BEHIND_S if behind else LOOK_EVERY_S)
        behind = check_experiment(control, core, clock)


def check_experiment(control: Control, core: Scheduler, clock: Clock) -> bool:
    """One look at the experiment, about 10 ms at most. True: there is more to be looked at."""
    if (trial := core.experiment) is None:
        return False
    before = trial.open_units
    for finding in trial.poll(clock.now()):
        control.found(finding)
    return before - trial.open_units >= CLOSES_AT_ONCE
