"""Worker threads for tokenising that would block the event loop: bounded in number and in time.

A caller gets a result or a timeout; after a timeout the work continues, and its result still reaches the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from router.prompt.prompt import UnknownIds

QUEUED_PER_THREAD = 16  # more would exceed their budget before they start

T = TypeVar("T")


def _discard(made: object) -> None:
    """Drop the result."""


class TokenizerThreads:
    """A thread pool with a bounded queue."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="warmroute-tokens")
        self._max_queued = QUEUED_PER_THREAD * threads
        self._queued = 0

    async def run(self, work: Callable[[], T], within_s: float, done: Callable[[T], None] = _discard) -> T | UnknownIds:
        """Return the result of `work`, or why it is late; `done` gets it on the event loop even after a timeout."""
        if self._queued >= self._max_queued:
            return UnknownIds("tokens_busy")
        self._queued += 1
        future = asyncio.get_running_loop().run_in_executor(self._pool, work)
        future.add_done_callback(partial(self._on_done, done))
        try:
            async with asyncio.timeout(within_s):
                return await asyncio.shield(future)
        except TimeoutError:
            return UnknownIds("tokens_late")

    def close(self) -> None:
        """Stop accepting work; running work is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _on_done(self, done: Callable[[T], None], future: asyncio.Future[T]) -> None:
        self._queued -= 1
        if not future.cancelled() and future.exception() is None:
            done(future.result())
