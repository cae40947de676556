"""The background tasks of the control plane: configuration files, the experiment's guard, and the audit log."""

from __future__ import annotations

import asyncio

from router.clock import Clock
from router.control.control import Control
from router.control.file_watch import watch_changes
from router.scheduling.experiments.experiment import CLOSES_AT_ONCE
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks

GUARD_INTERVAL_S = 1.0
BACKLOG_PAUSE_S = 0.02  # before the next check, when one did not get through everything


def start(control: Control, scheduler: Scheduler, clock: Clock, tasks: Tasks, *, watch: bool) -> None:
    """Start the tasks. `watch`: apply changed configuration files."""
    tasks.supervise("audit", control.audit.run)
    tasks.supervise("guard", lambda: guard_experiment(control, scheduler, clock))
    if watch and control.watched_paths():
        tasks.supervise("files", lambda: follow_files(control))


async def follow_files(control: Control) -> None:
    async for _ in watch_changes(control.watched_paths):
        await control.reload_files()


async def guard_experiment(control: Control, scheduler: Scheduler, clock: Clock) -> None:
    backlog = False
    while True:
        await asyncio.sleep(BACKLOG_PAUSE_S if backlog else GUARD_INTERVAL_S)
        backlog = check_experiment(control, scheduler, clock)


def check_experiment(control: Control, scheduler: Scheduler, clock: Clock) -> bool:
    """Check the running experiment once, for about 10 ms at most. Return whether units are left to check."""
    if (experiment := scheduler.experiment) is None:
        return False
    before = experiment.open_units
    for finding in experiment.poll(clock.now()):
        control.handle_finding(finding)
    return before - experiment.open_units >= CLOSES_AT_ONCE
