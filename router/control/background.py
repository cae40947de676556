"""The background tasks of the control plane: configuration files, the experiment's guard, and the audit log.

The folders of the configuration files are watched, not the files: an editor replaces the file, and an update of a
ConfigMap changes a symlink (`..data`) two steps away from it. So every folder on the way to a file is watched,
through each symlink, and the watch is set up again when these folders have changed. Only changes of names count
that are on the way, or that a policy file may have: a log file in the same folder triggers nothing. The watch does
not report which file changed: the reader reads all files, which takes a millisecond.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import NamedTuple

from watchfiles import Change, awatch

from router.clock import Clock
from router.control.allocator import give_back_memory
from router.control.control import Control
from router.scheduling.experiments.experiment import CLOSES_AT_ONCE
from router.scheduling.scheduler import Scheduler
from router.tasks import Tasks

log = logging.getLogger("warmroute.files")

GUARD_INTERVAL_S = 1.0
BACKLOG_PAUSE_S = 0.02  # before the next check, if the last one left units to check
DEBOUNCE_MS = 1000  # a change that goes on this long is reported before its end
STEP_MS = 50  # a change is complete after this long without another one
POLL_S = 1.0  # for folders that were created, deleted or replaced: a watch on a deleted folder reports nothing
POLICY_SUFFIXES = (".yaml", ".yml")
MAX_LINKS = 40  # the same as the kernel's own limit


class Watched(NamedTuple):
    """The folders in which a change can replace a configuration file, and the names that such a change has."""

    folders: Mapping[Path, tuple[int, int] | None]  # device and inode; None: the folder does not exist
    names: frozenset[str]  # of files, and of the links on the way to them


def start(control: Control, scheduler: Scheduler, clock: Clock, tasks: Tasks) -> None:
    """Start the tasks of every process; `follow_files` runs only in the process on duty."""
    tasks.supervise("audit", control.audit.run)
    tasks.supervise("memory", give_back_memory)
    tasks.supervise("guard", lambda: guard_experiment(control, scheduler, clock))


async def follow_files(control: Control) -> None:
    """Apply changed configuration files, until cancelled."""
    async for _ in watch_changes(control.watched_paths):
        await control.reload_files()


async def guard_experiment(control: Control, scheduler: Scheduler, clock: Clock) -> None:
    backlog = False
    while True:
        await asyncio.sleep(BACKLOG_PAUSE_S if backlog else GUARD_INTERVAL_S)
        backlog = check_experiment(control, scheduler, clock)


def check_experiment(control: Control, scheduler: Scheduler, clock: Clock) -> bool:
    """Check the running experiment and the splits of models once, for about 10 ms each at most. Return whether
    units are left to check.
    """
    waiting = control.splits is not None and control.splits.check()
    if (experiment := scheduler.experiment) is None:
        return waiting
    before = experiment.open_units
    for finding in experiment.poll(clock.now()):
        control.handle_finding(finding)
    return waiting or before - experiment.open_units >= CLOSES_AT_ONCE


async def watch_changes(paths: Callable[[], Iterable[Path]], poll_s: float = POLL_S) -> AsyncIterator[None]:
    """Yield after every change of the files and folders that `paths` returns at that time, until cancelled.

    Also yield when a watch has just been set up, since earlier changes were missed. A missing folder is logged once
    and checked for every `poll_s` seconds.
    """
    logged: set[Path] = set()
    while True:
        before = await asyncio.to_thread(find_watched, list(paths()))
        missing = {folder for folder, identity in before.folders.items() if identity is None}
        for folder in sorted(missing - logged):
            log.error("configuration folder missing, checking every %g s: %s", poll_s, folder)
        logged = missing
        fresh = True
        async with aclosing(_ticks(before, poll_s)) as ticks:
            async for changed in ticks:
                if changed or fresh:
                    yield
                fresh = False
                if await asyncio.to_thread(find_watched, list(paths())) != before:
                    break


async def _ticks(watched: Watched, every_s: float) -> AsyncGenerator[bool]:
    """Yield True for a change, False after `every_s` without one."""
    existing = [folder for folder, identity in watched.folders.items() if identity is not None]

    def is_configuration(change: Change, path: str) -> bool:
        name = Path(path).name
        return name in watched.names or name.endswith(POLICY_SUFFIXES)

    try:
        async for found in awatch(
            *existing,
            watch_filter=is_configuration,
            debounce=DEBOUNCE_MS,
            step=STEP_MS,
            rust_timeout=max(1, int(every_s * 1000)),
            yield_on_timeout=True,
            recursive=False,
        ):
            yield bool(found)
    except OSError as error:  # a folder was deleted meanwhile, or no inotify watches are left
        log.error("configuration files cannot be watched, trying again in %g s: %s", every_s, error)
        await asyncio.sleep(every_s)


def find_watched(paths: Iterable[Path]) -> Watched:
    """Return where a change can replace one of `paths`: in the path's folder, and in the folders of all symlinks on
    the way. For a path that is a folder, also in that folder and in the targets of symlinks in it. Every file of
    such a folder is examined, and there may be very many, so call this in a thread.
    """
    entries: set[Path] = set()
    folders: set[Path] = set()
    for path in paths:
        entries |= _follow_links(path.absolute())
        if path.is_dir():
            folders.add(path.resolve())
            for link in path.iterdir():
                entries |= _follow_links(link.absolute()) if link.is_symlink() else set()
    folders.update(entry.parent for entry in entries)
    return Watched({folder: _identity(folder) for folder in folders}, frozenset(entry.name for entry in entries))


def _follow_links(path: Path, links: int = 0) -> set[Path]:
    """Return the path, and all symlinks on the way to what it names."""
    found = {path}
    for part in (path, *path.parents):
        if part.is_symlink() and links < MAX_LINKS:
            found.add(part)
            found |= _follow_links(part.parent / part.readlink() / path.relative_to(part), links + 1)
            break
    return found


def _identity(folder: Path) -> tuple[int, int] | None:
    try:
        stat = folder.stat()
    except OSError:
        return None
    return (stat.st_dev, stat.st_ino) if folder.is_dir() else None
