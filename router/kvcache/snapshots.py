"""The index on disk: written periodically and at shutdown, read once at startup.

Targets are collected one per turn of the event loop, so that each is consistent with its own cursor; a thread
writes the file. A file is replaced whole, so a router that dies while writing leaves the previous file; its
unfinished file (`.new`) is removed at the next start, or at once if the disk is full. There is no fsync: after a
machine crash, an older or damaged file (detected by its checksum) costs nothing but a cold index.

The file holds the keys' secret, so it is readable by its owner only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from router.config.private_files import replace_private, unfinished
from router.kvcache.events import TargetId
from router.kvcache.snapshot_format import SavedIndex, SavedTarget, UnusableSnapshot, from_bytes, to_bytes
from router.tasks import Tasks

JOIN_WITHIN_S = 60.0  # restored targets that have not joined by then are dropped

log = logging.getLogger("warmroute.feeds.snapshot")


class SnapshotSource(Protocol):
    """The state to be saved; `KvIndexer` implements it."""

    def snapshot_targets(self) -> Sequence[TargetId]:
        """Return the targets to save."""

    def snapshot(self, target: TargetId) -> SavedTarget | None:
        """Return the state of `target` in one step of the event loop; None if nothing is known of it."""

    def discard_restored(self) -> None:
        """Drop the restored state of targets that have not joined."""


def load(path: Path, *, whole: bool = True) -> SavedIndex | None:
    """Return the last snapshot; None if there is none or it cannot be used, which is logged. `whole` False: without
    its targets. Removes the unfinished file of a router that died while writing.
    """
    with suppress(OSError):  # the next write tries again, and logs a failure
        unfinished(path).unlink(missing_ok=True)
    try:
        saved = from_bytes(path.read_bytes(), whole=whole)
    except FileNotFoundError:
        return None
    except OSError as error:
        log.warning("index snapshot not loaded: cannot read %s: %s", path, error)
        return None
    if isinstance(saved, UnusableSnapshot):
        log.warning("index snapshot not loaded: %s: %s", path, saved.reason)
        return None
    return saved


class Snapshots:
    """Writes the state of `source` to `path` every `every_s` seconds from `start` on."""

    def __init__(self, path: Path, every_s: float, secret: int, source: SnapshotSource, tasks: Tasks) -> None:
        self._path = path
        self._every_s = every_s
        self._secret = secret
        self._source = source
        self._tasks = tasks
        self._saving = asyncio.Lock()

    def start(self) -> None:
        """Start the periodic save and the timer that drops restored targets."""
        self._tasks.supervise("index snapshots", self._run)
        self._tasks.spawn("end of waiting for restored targets", self._discard_restored())

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.save()

    async def _discard_restored(self) -> None:
        await asyncio.sleep(JOIN_WITHIN_S)
        self._source.discard_restored()

    async def save(self) -> None:
        """Write a snapshot now. A failure to write is logged, and the previous file stays."""
        async with self._saving:
            targets = []
            for target in self._source.snapshot_targets():
                if (saved := self._source.snapshot(target)) is not None:
                    targets.append(saved)
                await asyncio.sleep(0)
            try:
                await asyncio.to_thread(write, self._path, self._secret, targets)
            except OSError as error:
                log.error("index snapshot not written: %s", error)


def write(path: Path, secret: int, targets: list[SavedTarget]) -> None:
    """Replace `path` in one step. Raises OSError, and then leaves no unfinished file behind."""
    replace_private(path, to_bytes(secret, targets))
