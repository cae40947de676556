"""Caches engine digests of blocks, so that a conversation's next turn hashes only its new blocks.

Keys identify whole prefixes, so one search finds the deepest known block. Eviction is by generations: blocks go
into the young generation; when that is full, the old one is dropped and the young one becomes the old one. A prompt
always leaves all its blocks in the young generation, so each generation holds prefixes without holes, and the
cached part of a prompt is found by bisection: exact, and without touching 5,000 entries to mark them as used.

The digests' bytes count towards the budget shared with the token ids, and take at most a quarter of that budget.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping, Sequence

from router.kvcache.engine_hashes import Adapter, Digest, EngineChain
from router.kvcache.events import Key
from router.kvcache.memory_budget import MemoryBudget

_HashParameters = tuple[EngineChain, Adapter | None]  # keys depend on neither the chain nor the adapter's path
LARGEST_SHARE = 4  # a quarter of the budget
SLICE_TOKENS = 4_000  # hashed at once, 0.5 to 2.5 ms
DIGEST_BYTES = 150  # a slot of a dict, the key and 32 bytes, each an object

_Generation = dict[_HashParameters, dict[Key, Digest]]


def budget_for(blocks: int) -> MemoryBudget:
    """Return a budget with room for `blocks` digests."""
    return MemoryBudget(blocks * DIGEST_BYTES * LARGEST_SHARE)


class DigestCache:
    """Digests of all models: keys of different models differ. Holds at most `limit_blocks`."""

    def __init__(self, limit_blocks: int, budget: MemoryBudget) -> None:
        self._budget = budget
        self._half = min(limit_blocks, budget.limit_bytes // LARGEST_SHARE // DIGEST_BYTES) // 2
        self._young: _Generation = {}
        self._old: _Generation = {}
        self._young_blocks = 0
        self._old_blocks = 0

    def __len__(self) -> int:
        """Number of cached digests; a digest in both generations counts twice."""
        return self._young_blocks + self._old_blocks

    def count_cached(self, chain: EngineChain, keys: Sequence[Key], adapter: Adapter | None = None) -> int:
        """Return how many leading blocks of `keys` need not be hashed."""
        flavour = (chain, adapter)
        return max(_depth(generation.get(flavour, {}), keys) for generation in (self._young, self._old))

    def hash_in_slices(
        self,
        chain: EngineChain,
        keys: Sequence[Key],
        token_ids: array[int],
        block_tokens: int,
        adapter: Adapter | None = None,
        salt: str | None = None,
    ) -> Iterator[None]:
        """Cache the digests of `keys`, except those of the last slice of `SLICE_TOKENS`: one slice per step."""
        blocks = max(1, SLICE_TOKENS // block_tokens)
        for end in range(self.count_cached(chain, keys, adapter) + blocks, len(keys), blocks):
            self.digests(chain, keys[:end], token_ids, block_tokens, adapter, salt)
            yield

    def digests(
        self,
        chain: EngineChain,
        keys: Sequence[Key],
        token_ids: array[int],
        block_tokens: int,
        adapter: Adapter | None = None,
        salt: str | None = None,
    ) -> list[Digest]:
        """Return the digest of each block in `keys`, the keys of the leading blocks of `token_ids`."""
        flavour = (chain, adapter)
        known = _known(self._young.get(flavour, {}), keys)
        young = len(known)
        if young == len(keys):
            return known
        old = self._old.get(flavour, {})
        known += map(old.__getitem__, keys[young : max(young, _depth(old, keys))])
        new_ids = token_ids[len(known) * block_tokens : len(keys) * block_tokens]
        digests = known + chain.chain(known[-1] if known else None, new_ids, block_tokens, adapter, salt)
        self._store(flavour, keys, digests, young)
        return digests

    def _store(self, flavour: _HashParameters, keys: Sequence[Key], digests: Sequence[Digest], young: int) -> None:
        """Put all digests into the young generation, which already has the first `young` of them."""
        count = min(len(keys), self._half)
        if self._young_blocks + count - young > self._half:
            self._budget.give(self._old_blocks * DIGEST_BYTES)
            self._budget.evicted += self._old_blocks
            self._old, self._old_blocks = self._young, self._young_blocks
            self._young, self._young_blocks, young = {}, 0, 0
        if count > young:
            self._young.setdefault(flavour, {}).update(zip(keys[young:count], digests[young:count], strict=True))
            self._young_blocks += count - young
            self._budget.take((count - young) * DIGEST_BYTES)


def _known(digests: Mapping[Key, Digest], keys: Sequence[Key]) -> list[Digest]:
    return list(map(digests.__getitem__, keys[: _depth(digests, keys)]))


def _depth(digests: Mapping[Key, Digest], keys: Sequence[Key]) -> int:
    """Return how many leading keys are present, if none is present without its predecessor."""
    if not keys or keys[0] not in digests:
        return 0
    low, high = 1, len(keys)  # the first `low` are present, at most `high`
    while low < high:
        middle = (low + high + 1) // 2
        if keys[middle - 1] in digests:
            low = middle
        else:
            high = middle - 1
    return low
