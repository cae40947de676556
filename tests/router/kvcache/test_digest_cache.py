from __future__ import annotations

import tracemalloc
from array import array
from collections.abc import Sequence
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.block_keys import Keyring
from router.kvcache.digest_cache import DIGEST_BYTES, DigestCache, budget_for
from router.kvcache.engine_hashes import Adapter, Digest, EngineChain
from router.kvcache.events import Key
from router.kvcache.memory_budget import MemoryBudget

CHAIN, OTHER = EngineChain("sha256_cbor", "0"), EngineChain("xxhash", "0")
RING = Keyring(1)
SIZE = 2


def remembering(limit_blocks: int) -> DigestCache:
    return DigestCache(limit_blocks, budget_for(limit_blocks))


class Prompt:
    """Token ids, a salt, and an adapter that is known to keys by its name alone."""

    def __init__(self, ids: Sequence[int], adapter: Adapter | None = None, salt: str | None = None) -> None:
        self.ids = array("I", ids)
        self.adapter, self.salt = adapter, salt
        root = RING.root("m", adapter and adapter[0], salt)
        self.keys: list[Key] = RING.chain(root, self.ids, SIZE)

    def fresh(self, chain: EngineChain) -> list[Digest]:
        return chain.chain(None, self.ids, SIZE, self.adapter, self.salt)

    def of(self, digests: DigestCache, chain: EngineChain = CHAIN) -> list[Digest]:
        return digests.digests(chain, self.keys, self.ids, SIZE, self.adapter, self.salt)


prompts = st.builds(
    Prompt,
    st.lists(st.integers(0, 1), max_size=14),  # few ids: many share prefixes
    st.sampled_from([None, ("a", "/1"), ("a", "/2")]),
    st.sampled_from([None, "s"]),
)


@given(st.lists(st.tuples(prompts, st.sampled_from([CHAIN, OTHER])), max_size=40), st.integers(0, 30))
def test_always_as_if_hashed_afresh_and_never_more_than_the_limit(
    asked: list[tuple[Prompt, EngineChain]], limit: int
) -> None:
    budget = budget_for(limit)
    digests = DigestCache(limit, budget)
    for prompt, chain in asked:
        assert prompt.of(digests, chain) == prompt.fresh(chain)
        assert len(digests) <= limit
        assert budget.held_bytes == len(digests) * DIGEST_BYTES


def hashed(digests: DigestCache, prompt: Prompt) -> int:
    """How many of its tokens are hashed when it is asked for now."""
    with mock.patch.object(EngineChain, "chain", autospec=True, side_effect=EngineChain.chain) as chain:
        prompt.of(digests)
    return sum(len(call.args[2]) for call in chain.call_args_list)


def test_a_next_turn_hashes_only_what_is_new() -> None:
    digests = remembering(100)
    assert hashed(digests, Prompt(range(10))) == 10
    assert hashed(digests, Prompt(range(10))) == 0
    assert hashed(digests, Prompt(range(14))) == 4  # blocks 5 and 6
    assert hashed(digests, Prompt([*range(6), 9, 9])) == 2  # another branch after 3 blocks
    assert hashed(digests, Prompt(range(14))) == 0
    assert len(digests) == 8  # 7 and the branch


def test_what_is_used_stays_and_what_is_not_goes() -> None:
    """Generations of 6 blocks. A conversation of 4 comes back after each of ten others, of 2 blocks each."""
    digests = remembering(12)
    ours, first = Prompt([7] * 8), Prompt([0, 0, 0, 0])
    assert hashed(digests, ours) == 8
    assert hashed(digests, first) == 4
    for other in range(1, 10):
        assert hashed(digests, Prompt([other, 0, 0, 0])) == 4
        assert hashed(digests, ours) == 0
    assert hashed(digests, first) == 4


def test_a_prompt_larger_than_the_memory_is_remembered_in_part() -> None:
    digests = remembering(10)
    long = Prompt(range(40))  # 20 blocks; 5 are remembered
    assert hashed(digests, long) == 40
    assert hashed(digests, long) == 30


def test_chains_and_adapter_paths_are_never_mixed() -> None:
    digests = remembering(100)
    one, two = Prompt(range(8), ("a", "/1")), Prompt(range(8), ("a", "/2"))
    assert one.keys == two.keys
    assert one.of(digests) == one.fresh(CHAIN) != two.fresh(CHAIN) == two.of(digests)
    assert one.of(digests, OTHER) == one.fresh(OTHER) != one.fresh(CHAIN)
    assert one.of(digests, EngineChain("sha256_cbor", "0")) == one.fresh(CHAIN)
    assert len(digests) == 12


def test_how_much_need_not_be_hashed_is_told_in_advance() -> None:
    digests = remembering(100)
    first, second = Prompt([1, 2, 3, 4, 5, 6]), Prompt([1, 2, 3, 4, 0, 0, 0, 0])
    assert digests.count_cached(CHAIN, first.keys) == 0
    first.of(digests)
    assert digests.count_cached(CHAIN, first.keys) == 3
    assert digests.count_cached(CHAIN, second.keys) == 2  # the blocks (1, 2) and (3, 4)
    assert digests.count_cached(OTHER, first.keys) == 0


def test_they_take_at_most_a_quarter_of_the_budget_whatever_their_own_limit() -> None:
    """A quarter of 12,000 bytes has room for 20 digests of 150, in two generations of 10."""
    budget = MemoryBudget(12_000)
    digests = DigestCache(1_000_000, budget)
    for start in range(0, 200, 20):
        Prompt(range(start, start + 20)).of(digests)  # 10 blocks each
        assert len(digests) <= 20
    assert budget.held_bytes == 20 * DIGEST_BYTES
    assert budget.evicted == 80  # the first eight prompts'


def test_without_memory_everything_is_hashed_again() -> None:
    digests = DigestCache(100, MemoryBudget(0))
    assert hashed(digests, Prompt(range(10))) == hashed(digests, Prompt(range(10))) == 10


def test_their_estimate_is_what_the_interpreter_takes() -> None:
    """32-byte digests of 40 prompts with 500 blocks each; keys come out of arrays, as a router's do."""
    budget = MemoryBudget(1 << 30)
    digests = DigestCache(1_000_000, budget)
    prompts = [Prompt(range(start, start + 1000)) for start in range(40)]
    for prompt in prompts:
        prompt.fresh(CHAIN)  # the chain keeps bytes per token id, which are not the digests'
    keys = [array("Q", prompt.keys) for prompt in prompts]
    tracemalloc.start()
    for prompt, its in zip(prompts, keys, strict=True):
        digests.digests(CHAIN, its, prompt.ids, SIZE)
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert taken == pytest.approx(budget.held_bytes, rel=0.25)
