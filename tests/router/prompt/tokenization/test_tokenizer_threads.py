"""Work beside the loop is bounded in number and in time, and what it made is not lost."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Iterator
from functools import partial

import pytest

from router.prompt.prompt import UnknownIds
from router.prompt.tokenization.threads import (
    QUEUED_BYTES_PER_THREAD,
    QUEUED_PER_THREAD,
    Abandonment,
    TokenizerThreads,
)

ALONE = QUEUED_PER_THREAD * 4 // 5  # that one client may have in the queue


@pytest.fixture
def threads() -> Iterator[TokenizerThreads]:
    threads = TokenizerThreads(1)
    yield threads
    threads.close()


async def test_elsewhere(threads: TokenizerThreads) -> None:
    there = await threads.run(threading.current_thread, 10.0)
    assert isinstance(there, threading.Thread)
    assert there.name.startswith("warmroute-tokens")


async def test_late_work_is_told_so_and_its_result_is_not_lost(threads: TokenizerThreads) -> None:
    gate, heard, abandonment = threading.Event(), asyncio.Queue[bool](), Abandonment()

    def work() -> bool:
        gate.wait(10)
        return abandonment.requested

    try:
        late = await threads.run(work, 0.01, 1, heard.put_nowait, abandonment)
        assert late == UnknownIds("tokens_late")
        assert heard.empty()
    finally:
        gate.set()
    assert await heard.get() is True


async def test_so_is_work_whose_client_has_left(threads: TokenizerThreads) -> None:
    gate, heard, abandonment = threading.Event(), asyncio.Queue[bool](), Abandonment()
    waiting = asyncio.ensure_future(threads.run(lambda: gate.wait(10), 10.0, 1, heard.put_nowait, abandonment))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await heard.get() is True
    assert abandonment.requested


class Text:
    """Something that work holds."""


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_abandoned_work_leaves_the_queue_and_the_memory(threads: TokenizerThreads, hangs_up: bool) -> None:
    gate, done = threading.Event(), list[object]()
    first = asyncio.ensure_future(threads.run(lambda: gate.wait(10), 10.0))
    await asyncio.sleep(0)
    text = Text()
    held = weakref.ref(text)
    within_s = 10.0 if hangs_up else 0.01
    queued = [
        asyncio.ensure_future(threads.run(partial(id, text), within_s, 10, done.append)) for _ in range(ALONE - 1)
    ]
    del text
    await asyncio.sleep(0)
    if hangs_up:
        assert all(one.cancel() for one in queued)
    await asyncio.wait(queued)
    assert hangs_up or {one.result() for one in queued} == {UnknownIds("tokens_late")}
    queued.clear()
    gc.collect()
    assert held() is None  # though the thread is still at the first
    again = [asyncio.ensure_future(threads.run(lambda: True, 10.0, 10)) for _ in range(ALONE - 1)]
    gate.set()
    assert await asyncio.gather(first, *again) == [True] * ALONE
    assert done == []


async def test_a_full_queue_is_told_at_once(threads: TokenizerThreads) -> None:
    gate = threading.Event()
    waiting = [asyncio.ensure_future(threads.run(lambda: gate.wait(10), 10.0)) for _ in range(ALONE)]
    await asyncio.sleep(0)
    assert await threads.run(lambda: True, 10.0) == UnknownIds("tokens_busy")
    gate.set()
    assert await asyncio.gather(*waiting) == [True] * ALONE
    assert await threads.run(lambda: True, 10.0) is True


async def test_text_in_the_queue_is_bounded_but_for_a_single_one(threads: TokenizerThreads) -> None:
    gate = threading.Event()
    first = asyncio.ensure_future(threads.run(lambda: gate.wait(10), 10.0, 2 * QUEUED_BYTES_PER_THREAD))
    await asyncio.sleep(0)
    assert await threads.run(lambda: True, 10.0, 1) == UnknownIds("tokens_busy")
    without_text = asyncio.ensure_future(threads.run(lambda: True, 10.0))
    gate.set()
    assert await asyncio.gather(first, without_text) == [True, UnknownIds("tokens_busy")]
    half = [asyncio.ensure_future(threads.run(lambda: True, 10.0, QUEUED_BYTES_PER_THREAD // 2)) for _ in range(3)]
    assert await asyncio.gather(*half) == [True, True, UnknownIds("tokens_busy")]
    assert await threads.run(lambda: True, 10.0, QUEUED_BYTES_PER_THREAD) is True


async def test_the_queue_of_one_client_delays_no_other(threads: TokenizerThreads) -> None:
    gate, order = threading.Event(), list[str]()
    first = asyncio.ensure_future(threads.run(lambda: gate.wait(10), 10.0, client="greedy"))
    await asyncio.sleep(0)
    greedy = [
        asyncio.ensure_future(threads.run(partial(order.append, "greedy"), 10.0, client="greedy")) for _ in range(30)
    ]
    await asyncio.sleep(0)
    size = 4 * QUEUED_BYTES_PER_THREAD
    other = asyncio.ensure_future(threads.run(partial(order.append, "other"), 10.0, size, client="other"))
    await asyncio.sleep(0)
    gate.set()
    await first
    answers = await asyncio.gather(*greedy, other)
    assert answers.count(UnknownIds("tokens_busy")) == 30 - (ALONE - 1), "the rest of its own"
    assert order.index("other") <= 1, "one of the other client was next already"


async def test_what_breaks_is_raised_where_it_was_asked_for(threads: TokenizerThreads) -> None:
    heard: list[float] = []
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0, 10.0, 1, heard.append)
    assert heard == []
    assert await threads.run(lambda: 1.0, 10.0) == 1.0
