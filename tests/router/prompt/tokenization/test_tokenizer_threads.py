"""Work beside the loop is bounded in number and in time, and what it made is not lost."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from router.prompt.prompt import UnknownIds
from router.prompt.tokenization.incremental import QUEUED_PER_THREAD, TokenizerThreads


@pytest.fixture
def threads() -> Iterator[TokenizerThreads]:
    threads = TokenizerThreads(1)
    yield threads
    threads.close()


async def test_elsewhere(threads: TokenizerThreads) -> None:
    there = await threads.run(threading.current_thread, 10.0)
    assert isinstance(there, threading.Thread)
    assert there.name.startswith("warmroute-tokens")


async def test_late_work_is_told_when_it_is_done(threads: TokenizerThreads) -> None:
    gate, heard = threading.Event(), asyncio.Queue[str]()
    try:
        late = await threads.run(lambda: gate.wait(10) and "made", 0.01, lambda made: heard.put_nowait(str(made)))
        assert late == UnknownIds("tokens_late")
        assert heard.empty()
    finally:
        gate.set()
    assert await heard.get() == "made"


async def test_so_does_work_whose_client_has_left(threads: TokenizerThreads) -> None:
    gate, heard = threading.Event(), asyncio.Queue[bool]()
    waiting = asyncio.ensure_future(threads.run(lambda: gate.wait(10), 10.0, heard.put_nowait))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    assert await heard.get() is True


async def test_a_full_queue_is_told_at_once(threads: TokenizerThreads) -> None:
    gate = threading.Event()
    waiting = [asyncio.ensure_future(threads.run(lambda: gate.wait(10), 10.0)) for _ in range(QUEUED_PER_THREAD)]
    await asyncio.sleep(0)
    assert await threads.run(lambda: True, 10.0) == UnknownIds("tokens_busy")
    gate.set()
    assert await asyncio.gather(*waiting) == [True] * QUEUED_PER_THREAD
    assert await threads.run(lambda: True, 10.0) is True


async def test_what_breaks_is_raised_where_it_was_asked_for(threads: TokenizerThreads) -> None:
    heard: list[float] = []
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0, 10.0, heard.append)
    assert heard == []
    assert await threads.run(lambda: 1.0, 10.0) == 1.0
