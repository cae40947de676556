"""Keeps freed memory for the next request, and gives it back to the system after a spike.

Pages that come from the system fault when they are first used. By default glibc gives back what it can after each
large request and obtains it again for the next one, which takes a tenth of the CPU time of a 320 KB request.

By itself glibc also keeps too much: in each of the areas from which threads allocate, a block in use holds the
freed block before it. After a prompt of 2 MB, which takes 400 MB while it is tokenised, 200 MB stayed for good.
`malloc_trim` gives back every free page in between.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
from collections.abc import Callable
from pathlib import Path
from time import process_time

log = logging.getLogger("warmroute.memory")

INTERVAL_S = 10.0
# Pages that were given back fault on their next use, 0.6 ms per MB: a busy router would pay for that with each large
# request. Once in `KEPT_S` it can afford that; then its size follows what it uses, not its peaks.
GROWN_BYTES = 64 * 1024 * 1024  # since memory was last given back
GROWN_WHILE_IDLE_BYTES = 2 * 1024 * 1024
IDLE_SHARE = 0.1  # of a core
KEPT_S = 300.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# mallopt(3): blocks from this size on come from the system one by one, and go back to it; glibc allows 32 MB
M_MMAP_THRESHOLD, MMAP_BYTES = -3, 32 * 1024 * 1024
# free memory beyond this at the end of the heap is given back without `malloc_trim`
M_TRIM_THRESHOLD, TRIM_BYTES = -1, 64 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory until `give_back_memory` releases it, or until there is much of it.
    Return False if the C library is not glibc.
    """
    mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))


def find_trim() -> Callable[[int], int] | None:
    """Return the C library's `malloc_trim`, which may be called in any thread; None if the library is not glibc."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


async def give_back_memory() -> None:
    """Until cancelled, give back freed memory every `INTERVAL_S` if `is_due`."""
    trim = find_trim()
    if trim is None:
        log.debug("freed memory is not returned to the system: the C library has no malloc_trim")
        return
    least, used_s, kept_s = resident_bytes(), process_time(), 0.0
    while True:
        await asyncio.sleep(INTERVAL_S)
        used_before_s, used_s, kept_s = used_s, process_time(), kept_s + INTERVAL_S
        if is_due(resident_bytes() - least, (used_s - used_before_s) / INTERVAL_S, kept_s):
            await asyncio.to_thread(trim, 0)
            least, kept_s = resident_bytes(), 0.0


def is_due(grown_bytes: int, cpu_share: float, kept_s: float) -> bool:
    """Return whether to give back freed memory now: the process has grown by so much since it last did, `kept_s` ago,
    and now uses this share of a core.
    """
    idle = cpu_share < IDLE_SHARE
    return grown_bytes > (GROWN_WHILE_IDLE_BYTES if idle or kept_s >= KEPT_S else GROWN_BYTES)


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
