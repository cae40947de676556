"""Who asks the pool for which block, and how often."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.router.backends.mooncake.scene import BLOCK, prompt, scene, until


async def test_the_same_prompt_again_asks_nothing() -> None:
    known = prompt(5)
    async with scene() as its:
        its.put(known, range(5))
        assert await its.tokens(known) == 5 * BLOCK
        assert await its.tokens(known) == 5 * BLOCK
        assert len(its.master.queries) == 1


async def test_what_was_evicted_is_seen_when_the_word_on_it_has_expired() -> None:
    known = prompt(5)
    async with scene(ttl_ms=50) as its:
        its.put(known, range(5))
        assert await its.tokens(known) == 5 * BLOCK
        its.remove(known, range(2, 5))  # nobody tells
        end = time.monotonic() + 5
        while (tokens := await its.tokens(known)) != 2 * BLOCK:
            assert tokens == 5 * BLOCK
            assert time.monotonic() < end
            await asyncio.sleep(0.005)
        assert len(its.master.queries) == 2


async def test_a_longer_prompt_asks_only_for_what_is_new_in_it() -> None:
    async with scene() as its:
        long = prompt(8)
        its.put(long, range(8))
        await its.tokens(prompt(5))
        assert await its.tokens(long) == 8 * BLOCK
        assert [len(keys) for keys in its.master.queries] == [5, 3]


async def test_two_requests_at_once_share_one_question() -> None:
    short, long = prompt(5), prompt(8)
    async with scene() as its:
        its.put(long, range(7))
        its.faults(slow_ms=30)
        assert await asyncio.gather(its.tokens(short), its.tokens(long), its.tokens(short)) == [20, 28, 20]
        assert sorted(len(keys) for keys in its.master.queries) == [3, 5]


async def test_a_long_prompt_takes_few_small_questions() -> None:
    known = prompt(5000)
    async with scene(keys_at_once=256) as its:
        its.put(known, range(3210))
        assert await its.tokens(known) == 3210 * BLOCK
        assert len(its.master.queries) <= 3
        assert max(map(len, its.master.queries)) <= 256


async def test_a_request_that_goes_away_does_not_take_the_question_with_it() -> None:
    known = prompt(5)
    async with scene() as its:
        its.put(known, range(5))
        its.faults(slow_ms=50)
        request = asyncio.ensure_future(its.held(known))
        await until("it asks", lambda: its.pool.report().queries.questions == 1)
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        assert await its.tokens(known) == 5 * BLOCK
        assert its.pool.report().queries.questions == 1
