"""KV by block names: what is evicted, held and announced by a cache, and in a pool or host memory."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import BlocksRemoved, BlocksStored
from router.testbed.simulator.block_cache import BlockCache, KvTier, TransferLink
from router.testbed.simulator.scenario import LinkSpeed

A, B = [1, 2, 3, 4], [1, 2, 30, 40]  # two prompts that share two blocks


def computed(cache: BlockCache, names: list[int]) -> None:
    """A request comes, computes what is missing, and leaves."""
    hits = cache.count_held(names)
    cache.use(names[:hits])
    cache.nameless_tokens += (len(names) - hits) * cache.block_tokens
    cache.fit()
    cache.name(names, hits, len(names))
    cache.release(names)


def test_the_tail_goes_before_the_head_and_the_shared_prefix_last() -> None:
    cache = BlockCache(7 * 10, 10)
    computed(cache, A)
    computed(cache, B)  # six blocks of seven
    computed(cache, [50, 60, 70])  # two must go: the longest unused is A's tail
    assert cache.count_held(A) == 2
    assert cache.count_held(B) == 4
    stored, _, removed, _ = cache.drain()
    assert isinstance(stored, BlocksStored)
    assert (stored.hashes, stored.parent) == (A, None)
    assert removed == BlocksRemoved([4, 3], removed.tier, 0)  # type: ignore[union-attr]


def test_live_blocks_are_never_evicted() -> None:
    cache = BlockCache(40, 10)
    cache.nameless_tokens = 40
    cache.name(A, 0, 4)
    cache.fit()
    assert cache.count_held(A) == 4
    assert cache.live_tokens == 40
    assert cache.count_idle(A) == 0
    cache.release(A)
    assert cache.count_idle(A) == 4
    assert cache.live_tokens == 0


def test_what_is_computed_twice_at_once_is_cached_once() -> None:
    cache = BlockCache(100, 10)
    cache.nameless_tokens = 80  # two requests with nothing cached
    cache.name(A, 0, 4)
    cache.name(A, 0, 4)
    assert cache.live_tokens == 40
    cache.release(A)
    assert cache.live_tokens == 40
    cache.release(A)
    assert cache.live_tokens == 0
    assert len(cache.drain()) == 1


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), max_size=30), st.integers(8, 20))
def test_whoever_is_cached_is_cached_with_all_before_it(prompts: list[list[int]], blocks: int) -> None:
    """So that how far a prompt goes may be bisected; and the events tell exactly what is there."""
    cache = BlockCache(blocks * 10, 10)
    told: set[int] = set()
    every: dict[int, int] = {}
    for prompt in prompts:
        names = []
        for token in prompt:
            names.append(hash((names[-1] if names else 0, token + 1)) & 0xFFFFFFF)
            every[names[-1]] = names[-2] if len(names) > 1 else 0
        computed(cache, names)
        for event in cache.drain():
            if isinstance(event, BlocksStored):
                told.update(event.hashes)
            elif isinstance(event, BlocksRemoved):
                told.difference_update(event.hashes)
        assert len(told) == cache.cached_blocks <= blocks
        assert all(every[name] == 0 or every[name] in told for name in told)
        assert cache.count_held(names) == len(names)


def test_the_longest_unused_goes_first_its_tail_before_its_head() -> None:
    held = KvTier(50, 10)
    held.use([1, 2, 3])
    held.use([7, 8])
    held.use([1, 2, 3])  # used again
    held.use([9])
    assert held.count_held([7, 8]) == 1
    assert held.count_held([1, 2, 3]) == 3
    assert len(held) == 5


def test_a_pool_that_is_away_has_nothing_and_takes_nothing_and_comes_back_as_it_was() -> None:
    held = KvTier(50, 10)
    held.use([1, 2])
    held.away = True
    held.use([3])
    assert held.count_held([1, 2]) == 0
    held.away = False
    assert held.count_held([1, 2]) == 2
    assert len(held) == 2


def test_loads_over_one_link_follow_each_other() -> None:
    link = TransferLink(LinkSpeed(1000.0, 10.0))
    assert link.load(100, 0.0) == pytest.approx(0.11)
    assert link.load(100, 0.05) == pytest.approx(0.22)
    assert link.load(100, 1.0) == pytest.approx(1.11)
