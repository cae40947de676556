"""Worker threads for work that would block the event loop: reading, rendering and tokenising long prompts.

The work is bounded in number, in time and in bytes, and shared fairly by the clients that sent the prompts: while
the `tokenizers` library works on a text, it takes 90 to 330 times its size in memory. A caller gets a result, or
the reason why there is none in time. When the caller stops waiting, because the budget has passed or its client has
left, queued work is dropped, and running work is notified; its results so far still reach the cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Generic, TypeVar

from router.prompt.prompt import UnknownIds
from router.prompt.tokenization.fair_slots import FairSlots
from router.tenants.fair_share import FairShare

QUEUED_PER_THREAD = 20  # more would exceed their budget before they start; a client alone takes four fifths
SLOTS_PER_THREAD = 3  # jobs given to a thread, which no other client's can overtake; one client has two
QUEUED_BYTES_PER_THREAD = 4 * 1024 * 1024  # of text to tokenise; likewise

T = TypeVar("T")


class Abandonment:
    """`requested` is True once the result is no longer awaited: work in several steps checks it between steps."""

    __slots__ = ("requested",)

    def __init__(self) -> None:
        self.requested = False


class _Job(Generic[T]):
    """Work that can be dropped: the pool keeps a cancelled job until its turn, and the job keeps its data alive."""

    __slots__ = ("work",)

    def __init__(self, work: Callable[[], T]) -> None:
        self.work: Callable[[], T] | None = work

    def run(self) -> T:
        assert self.work is not None, "dropped jobs are cancelled"
        return self.work()


def discard(result: object) -> None:
    """Drop the result."""


class TokenizerThreads:
    """The threads and their queue."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="warmroute-tokens")
        self._queued = FairShare(QUEUED_PER_THREAD * threads)
        self._slots = FairSlots(SLOTS_PER_THREAD * threads)
        self._max_bytes = QUEUED_BYTES_PER_THREAD * threads
        self._bytes = 0

    async def run(
        self,
        work: Callable[[], T],
        within_s: float,
        text_bytes: int = 0,
        done: Callable[[T], None] = discard,
        abandonment: Abandonment | None = None,
        *,
        client: str = "",
    ) -> T | UnknownIds:
        """Return the result of `work`, which tokenises `text_bytes` for `client`, or why there is none. `done`
        receives every result, on the event loop. A client's only prompt is accepted whatever its size: it is
        bounded by the longest prompt that its model can take.
        """
        too_much = self._bytes and self._bytes + text_bytes > self._max_bytes and self._queued.held(client)
        if too_much or self._queued.take(client, 1) is not None:
            return UnknownIds("tokens_busy")
        self._bytes += text_bytes
        job = _Job(work)
        running: Future[T] | None = None
        try:
            async with asyncio.timeout(within_s):
                await self._slots.take(client)
                running = self._pool.submit(job.run)
                future = asyncio.wrap_future(running)
                future.add_done_callback(partial(self._on_done, client, text_bytes, done))
                return await asyncio.shield(future)
        except TimeoutError:
            return UnknownIds("tokens_late")
        finally:
            if abandonment is not None:
                abandonment.requested = True
            if running is None:
                self._leave(client, text_bytes)
            elif running.cancel():
                job.work = None

    def close(self) -> None:
        """Stop accepting work; running work is not waited for."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _on_done(self, client: str, text_bytes: int, done: Callable[[T], None], future: asyncio.Future[T]) -> None:
        self._slots.give_back(client)
        self._leave(client, text_bytes)
        if not future.cancelled() and future.exception() is None:
            done(future.result())

    def _leave(self, client: str, text_bytes: int) -> None:
        self._queued.give_back(client, 1)
        self._bytes -= text_bytes
