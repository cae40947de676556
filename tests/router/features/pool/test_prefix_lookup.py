"""Who asks the pool for which block, and how often."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.features.pool.answer_cache import BlockPresence
from router.features.pool.prefix_lookup import LEAST_AT_ONCE, ProbePlan
from tests.router.features.pool.scene import BLOCK, prompt, scene, until


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


THERE = st.sampled_from([BlockPresence.MEMORY, BlockPresence.DISK])


def leading(pool: Sequence[BlockPresence]) -> int:
    """The oracle: what an engine would load."""
    return next((block for block, word in enumerate(pool) if word == BlockPresence.ABSENT), len(pool))


def searched(pool: Sequence[BlockPresence], at_once: int, known: Sequence[int] = ()) -> tuple[ProbePlan, list[int]]:
    """The search's end, and the size of each of its questions. `known`: blocks that need not be asked for."""
    words = bytearray(word if block in known else BlockPresence.UNKNOWN for block, word in enumerate(pool))
    probe = ProbePlan(words, at_once)
    sizes = []
    while blocks := probe.next_blocks():
        assert len(set(blocks)) == len(blocks)
        assert all(probe.presence[block] == BlockPresence.UNKNOWN for block in blocks)
        assert all(block < probe.held for block in blocks)
        sizes.append(len(blocks))
        for block in blocks:
            probe.record(block, pool[block])
    return probe, sizes


@st.composite
def runs(draw: st.DrawFn) -> list[BlockPresence]:
    """A pool without holes: a run of blocks that are there, then none."""
    there = draw(st.lists(THERE, max_size=300))
    return there + [BlockPresence.ABSENT] * draw(st.integers(0, 300))


@st.composite
def with_holes(draw: st.DrawFn) -> list[BlockPresence]:
    """Stretches of both kinds."""
    stretches = draw(
        st.lists(
            st.tuples(st.sampled_from([BlockPresence.ABSENT, *BlockPresence][1:]), st.integers(1, 80)), max_size=12
        )
    )
    return [word if word else BlockPresence.ABSENT for word, length in stretches for _ in range(length)]


@given(runs(), st.integers(1, 64))
def test_a_run_without_holes_is_measured_exactly(pool: list[BlockPresence], at_once: int) -> None:
    probe, sizes = searched(pool, at_once)
    assert probe.held == leading(pool)
    assert all(size <= max(LEAST_AT_ONCE, at_once) for size in sizes)


@given(with_holes(), st.integers(1, 64), st.sets(st.integers(0, 400)))
def test_only_holes_shorter_than_a_stride_are_missed(pool: list[BlockPresence], at_once: int, known: set[int]) -> None:
    probe, _ = searched(pool, at_once, sorted(known))
    assert probe.held >= leading(pool)
    stride = ceil(len(pool) / (max(LEAST_AT_ONCE, at_once) - 1))
    if not known:
        assert longest_hole(pool[: probe.held]) < max(2, stride)


@given(with_holes(), st.integers(1, 300), st.sets(st.integers(0, 400)))
def test_a_prompt_of_two_questions_is_exact_with_whatever_holes(
    pool: list[BlockPresence], at_once: int, known: set[int]
) -> None:
    pool = pool[: 2 * max(LEAST_AT_ONCE, at_once)]
    probe, sizes = searched(pool, at_once, sorted(known) if len(pool) <= at_once else [])
    assert probe.held == leading(pool)
    assert len(sizes) <= (1 if len(pool) <= at_once else 2)


@given(st.lists(THERE, max_size=60), st.integers(1, 80))
def test_the_run_in_memory_ends_at_the_first_block_on_disk(there: list[BlockPresence], at_once: int) -> None:
    pool = [*there, BlockPresence.ABSENT, BlockPresence.MEMORY]
    probe, _ = searched(pool, max(at_once, len(pool)))
    assert probe.held == len(there)
    assert probe.in_memory == (there.index(BlockPresence.DISK) if BlockPresence.DISK in there else len(there))


@pytest.mark.parametrize(
    ("held", "questions"),
    [
        (5000, 1),  # the first question meets nothing that is not there, up to the last block
        (0, 1),  # block 0 is in the first question
        (3210, 2),  # a gap of 5000 / 255 = 20 blocks is left: all in the second
        (200, 2),
    ],
)
def test_what_a_prompt_of_80_000_tokens_costs(held: int, questions: int) -> None:
    pool = [BlockPresence.MEMORY] * held + [BlockPresence.ABSENT] * (5000 - held)
    probe, sizes = searched(pool, 256)
    assert probe.held == held
    assert len(sizes) <= questions
    assert max(sizes) == 256


def test_many_small_holes_are_met_and_searched_down_to_the_first() -> None:
    """Eviction took every 40th block of 5,000, from block 39 on: a stride of 20 meets some of them."""
    pool = [BlockPresence.ABSENT if block % 40 == 39 else BlockPresence.MEMORY for block in range(5000)]
    probe, sizes = searched(pool, 256)
    assert probe.held == 39
    assert len(sizes) <= 4


def test_a_known_part_is_not_asked_for_again() -> None:
    pool = [BlockPresence.MEMORY] * 30 + [BlockPresence.ABSENT] * 10
    probe, sizes = searched(pool, 64, known=range(20))
    assert probe.held == 30
    assert sizes == [20]
    assert searched(pool, 64, known=range(31))[1] == []


def longest_hole(pool: Sequence[BlockPresence]) -> int:
    longest = run = 0
    for word in pool:
        run = run + 1 if word == BlockPresence.ABSENT else 0
        longest = max(longest, run)
    return longest
