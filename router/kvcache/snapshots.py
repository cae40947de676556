"""The index on disk: written every minute and at the end, read once at the start.

Collecting is the loop's, a target per turn, so that each is consistent with its own cursor; writing is a thread's. A
file is replaced whole, so a router that dies while it writes leaves the one before. It is not forced to the disk: after
a machine's crash an older one, or one that its checksum refutes, costs nothing but warmth.

The keys' secret is in it, so only its owner may read it.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from router.kvcache.events import TargetId
from router.kvcache.snapshot_format import SavedIndex, SavedTarget, UnusableSnapshot, from_bytes, to_bytes
from router.tasks import Tasks

JOIN_WITHIN_S = 60.0  # what is restored of a target that is not there by then is given up

log = logging.getLogger("warmroute.feeds.snapshot")


class SnapshotSource(Protocol):
    """Who knows what is to be saved."""

    def snapshot_targets(self) -> Sequence[TargetId]: ...

    def snapshot(self, target: TargetId) -> SavedTarget | None:
        """In one piece; None: nothing is known of it."""

    def discard_restored(self) -> None:
        """Time is up for whoever was restored and has not joined."""


def load(path: Path) -> SavedIndex | None:
    """What was saved last. None: nothing, or nothing that can be used, which is said in one line."""
    try:
        saved = from_bytes(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as trouble:
        log.warning("no snapshot of the index: cannot read %s: %s", path, trouble)
        return None
    if isinstance(saved, UnusableSnapshot):
        log.warning("no snapshot of the index: %s: %s", path, saved.reason)
        return None
    return saved


class Snapshots:
    """Keeps `path` up to date with `source`, from `start` on."""

    def __init__(self, path: Path, every_s: float, secret: int, source: SnapshotSource, tasks: Tasks) -> None:
        self._path = path
        self._every_s = every_s
        self._secret = secret
        self._source = source
        self._tasks = tasks
        self._saving = asyncio.Lock()

    def start(self) -> None:
        self._tasks.supervise("index snapshots", self._keep)
        self._tasks.spawn("end of waiting for restored targets", self._give_up())

    async def _keep(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.save()

    async def _give_up(self) -> None:
        await asyncio.sleep(JOIN_WITHIN_S)
        self._source.discard_restored()

    async def save(self) -> None:
        """What cannot be written is said, and the file before stays."""
        async with self._saving:
            targets = []
            for target in self._source.snapshot_targets():
                if (saved := self._source.snapshot(target)) is not None:
                    targets.append(saved)
                await asyncio.sleep(0)
            try:
                await asyncio.to_thread(write, self._path, self._secret, targets)
            except OSError as trouble:
                log.error("the index is not saved: %s", trouble)


def write(path: Path, secret: int, targets: list[SavedTarget]) -> None:
    """Replaces `path` in one step. Raises OSError."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.unlink(missing_ok=True)  # its rights would be another's
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        for piece in to_bytes(secret, targets):
            file.write(piece)
    fresh.replace(path)
