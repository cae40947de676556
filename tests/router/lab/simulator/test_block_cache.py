"""KV by block names: what is evicted, held and announced by a cache, and in a pool or host memory."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import BlocksRemoved, BlocksStored
from router.lab.simulator.block_cache import BlockCache, KvTier, TransferLink
from router.lab.simulator.scenario import LinkSpeed

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


class RecordedRequests:
    """Replays the requests that a real vLLM 0.32 admitted, in its order, into a cache of the same 127 blocks.

    Recorded inside the scheduler of one of two engines over a Mooncake Store, while `warm` sent coding agents to both
    (`tests/agreement/stack.py`, cache-aware arm): `admit` a prompt, whose blocks are runs of [first name, count];
    `cache` its blocks up to a number; `grow` to a number of blocks while it decodes; `end`. `hits` is the number of
    blocks that vLLM found in its own cache. Live requests occupy whole blocks there.
    """

    def __init__(self) -> None:
        self.cache = BlockCache(127 * 128, 128)
        self._names: dict[int, list[int]] = {}
        self._held: dict[int, int] = {}
        self._blocks: dict[int, int] = {}

    def hits(self, line: dict[str, Any]) -> tuple[int, int] | None:
        """Apply a line. Return vLLM's hits and ours when a prompt is admitted."""
        if "admit" in line:
            return line["hits"], self._admit(line["admit"], line["tokens"], _names(line["blocks"]))
        if "cache" in line:
            number, until = line["cache"], line["until"]
            self._names[number] += _names(line.get("more", []))
            if until > self._held[number]:
                self.cache.name(self._names[number], self._held[number], until)
                self._held[number] = until
        elif "grow" in line:
            number = line["grow"]
            self.cache.nameless_tokens += (line["blocks"] - self._blocks[number]) * 128
            self._blocks[number] = line["blocks"]
        else:
            number = line["end"]
            self.cache.nameless_tokens -= (self._blocks[number] - self._held[number]) * 128
            self.cache.release(self._names[number][: self._held[number]])
        self.cache.fit()
        return None

    def _admit(self, number: int, tokens: int, names: list[int]) -> int:
        hits = self.cache.count_held(names[: (tokens - 1) // 128])
        self.cache.use(names[:hits])
        self._names[number], self._held[number], self._blocks[number] = names, hits, -(-tokens // 128)
        self.cache.nameless_tokens += (self._blocks[number] - hits) * 128
        self.cache.fit()
        return hits


def _names(runs: list[list[int]]) -> list[int]:
    return [name for first, count in runs for name in range(first, first + count)]


@pytest.mark.parametrize("engine", [0, 1])
def test_a_real_engine_finds_the_same_blocks(engine: int) -> None:
    file = Path(__file__).parents[3] / "data" / f"vllm-0.32-kv-cache-{engine}.jsonl"
    replay = RecordedRequests()
    found = [replay.hits(msgspec.json.decode(line)) for line in file.read_bytes().splitlines()]
    pairs = [pair for pair in found if pair is not None]
    assert len(pairs) > 30
    assert sum(real for real, _ in pairs) > 400
    assert [ours for _, ours in pairs] == [real for real, _ in pairs]
