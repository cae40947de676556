"""Work that would hold the event loop for too long, done beside it: bounded in number and in time.

Who waits is told in time that it is too late; the work goes on all the same, and what it makes is not lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from router.prompt.prompt import UnknownIds

QUEUED_PER_THREAD = 16  # more would be past its budget before it began

T = TypeVar("T")


def _nothing(made: object) -> None:
    """Nobody waits for it, and nobody wants it."""


class TokenizerThreads:
    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="warmroute-tokens")
        self._most_queued = QUEUED_PER_THREAD * threads
        self._queued = 0

    async def run(self, work: Callable[[], T], within_s: float, done: Callable[[T], None] = _nothing) -> T | UnknownIds:
        """What `work` returns. `done` gets it too, on the event loop, even when nobody waits for it any more."""
        if self._queued >= self._most_queued:
            return UnknownIds("tokens_busy")
        self._queued += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(partial(self._ended, done))
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(future)
        except TimeoutError:
            return UnknownIds("tokens_late")

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _ended(self, done: Callable[[T], None], future: asyncio.Future[T]) -> None:
        self._queued -= 1
        if not future.cancelled() and future.exception() is None:
            done(future.result())
