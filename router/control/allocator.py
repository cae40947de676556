"""Keeps freed memory for the next request, and gives it back to the system after a spike.

Pages that come from the system fault when they are first used. By default glibc gives back what it can after each
large request and asks for it again for the next one: a tenth of the CPU time of a request of 320 KB.

Left alone it also keeps too much: a block in use behind a freed one holds it, in each of the areas from which
threads allocate. After a prompt of 2 MB, which takes 400 MB while it is tokenised, 200 MB stayed for good.
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
# Pages that were given back fault when they are used again: a busy router would pay for them with each large request.
GROWN_BYTES = 64 * 1024 * 1024  # since it was last given back
GROWN_WHILE_IDLE_BYTES = 8 * 1024 * 1024
IDLE_SHARE = 0.1  # of a core
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# mallopt(3): blocks from this size on are asked of the system one by one, and given back; glibc allows 32 MB at most
M_MMAP_THRESHOLD, MMAP_BYTES = -3, 32 * 1024 * 1024
# the free memory at the end of the heap from which on it is given back without being asked to
M_TRIM_THRESHOLD, TRIM_BYTES = -1, 64 * 1024 * 1024


def keep_freed_memory() -> bool:
    """Make the C library keep freed memory until `give_back_memory` asks for it, or until there is much of it.
    Return False if it is not glibc.
    """
    mallopt: Callable[[int, int], int] | None = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(M_TRIM_THRESHOLD, TRIM_BYTES))


def find_trim() -> Callable[[int], int] | None:
    """Return the C library's `malloc_trim`, which may be called in any thread; `None` if it is not glibc."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    return trim


async def give_back_memory() -> None:
    """Give back freed memory every `INTERVAL_S` if the process has grown since then, until cancelled."""
    trim = find_trim()
    if trim is None:
        log.debug("freed memory is not given back to the system: the C library has no malloc_trim")
        return
    least, used_s = resident_bytes(), process_time()
    while True:
        await asyncio.sleep(INTERVAL_S)
        used_before_s, used_s = used_s, process_time()
        idle = used_s - used_before_s < IDLE_SHARE * INTERVAL_S
        if resident_bytes() > least + (GROWN_WHILE_IDLE_BYTES if idle else GROWN_BYTES):
            await asyncio.to_thread(trim, 0)
            least = resident_bytes()


def resident_bytes() -> int:
    """Return the memory of this process that is resident."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES
