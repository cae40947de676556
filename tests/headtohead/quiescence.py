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


async def until_quiescent(pids: Sequence[int]) -> None:
    """Return when all threads of these processes, and those of this one but the caller's, sleep, and none has run
    between two looks. Raises WarmrouteError if that does not happen within `PATIENCE_S`.
    """
    caller, before = str(threading.get_native_id()), list[ThreadState]()
    for _ in range(int(PATIENCE_S / POLL_S)):
        seen = [one for pid in (os.getpid(), *pids) for one in _threads(pid) if one.thread != caller]
        if seen == before and all(one.is_asleep for one in seen):
            return
        before = seen
        await asyncio.sleep(POLL_S)
    raise WarmrouteError(f"the processes {pids} have not slept for {PATIENCE_S:.0f} s")


def _threads(pid: int) -> Iterator[ThreadState]:
    folder = f"/proc/{pid}/task"
    for thread in os.listdir(folder):
        try:
            with open(f"{folder}/{thread}/stat", "rb") as stat, open(f"{folder}/{thread}/schedstat", "rb") as scheduled:
                state = stat.read().rpartition(b")")[2].split()[0]
                yield ThreadState(thread, state == b"S", scheduled.read())
        except OSError:  # it has ended since
            continue
