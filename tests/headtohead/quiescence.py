"""Finds out when a router has taken in all that it was sent: its threads sleep, and so do the others of this process,
which send for the caller. A thread that has something to read is runnable as soon as it was sent, however long a busy
machine lets it wait.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from router.errors import WarmrouteError

POLL_S, PATIENCE_S = 0.001, 30.0


class ThreadState(NamedTuple):
    """A thread as /proc shows it. `scheduled`: its times on a core and waiting for one, and how often it got one."""

    thread: str
    is_asleep: bool
    scheduled: bytes


class Quiescence:
    """Looks at the threads of these processes, and at those of this one but the caller's. Keeps two files of each open
    until `close`.
    """

    def __init__(self, pids: Sequence[int]) -> None:
        self._folders = [f"/proc/{pid}/task" for pid in (os.getpid(), *pids)]
        self._files: dict[str, tuple[int, int]] = {}  # by thread: its state, and how it was scheduled

    async def wait(self) -> None:
        """Return when all threads sleep and none has run between two looks. Raises WarmrouteError if that does not
        happen within `PATIENCE_S`.
        """
        caller, before = str(threading.get_native_id()), list[ThreadState]()
        for _ in range(int(PATIENCE_S / POLL_S)):
            seen = list(self._look(caller))
            if seen == before and all(one.is_asleep for one in seen):
                return
            before = seen
            await asyncio.sleep(POLL_S)
        raise WarmrouteError(f"the router's threads have not slept for {PATIENCE_S:.0f} s")

    def close(self) -> None:
        for files in self._files.values():
            for file in files:
                os.close(file)
        self._files.clear()

    def _look(self, caller: str) -> Iterator[ThreadState]:
        for folder in self._folders:
            for thread in os.listdir(folder):
                if thread == caller:
                    continue
                try:
                    state, scheduled = self._files.get(thread) or self._open(folder, thread)
                    asleep = os.pread(state, 128, 0).rpartition(b")")[2].startswith(b" S")
                    yield ThreadState(thread, asleep, os.pread(scheduled, 128, 0))
                except OSError:  # it has ended since
                    continue

    def _open(self, folder: str, thread: str) -> tuple[int, int]:
        state, scheduled = (os.open(f"{folder}/{thread}/{name}", os.O_RDONLY) for name in ("stat", "schedstat"))
        self._files[thread] = state, scheduled
        return state, scheduled
