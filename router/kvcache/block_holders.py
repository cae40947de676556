"""The targets that hold each block: one table per tier, from a block's key to a bit set of targets (`bulk.py`).

A target is one bit, so "which targets still hold the prefix" is one AND per block, however many targets there are.
There are two ways to find how far each target goes along a prompt:

`walk` goes block by block until the last target has dropped out. It is correct for any content.

`bisect` looks up the block in the middle; targets that hold it continue in the second half, the others in the
first. It is correct only for targets that hold no block without its predecessor (`contiguity.py`), and takes 13
look-ups instead of 5,000.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import cast

from router.kvcache.bulk import HolderTable
from router.kvcache.events import Key, Tier


class BlockHolders:
    """The shared tables; `BlockIndex` assigns the bits."""

    def __init__(self) -> None:
        self.tables = (HolderTable(), HolderTable(), HolderTable())  # by tier
        self.blocks = [0, 0, 0]  # by tier, summed over all joined targets

    def add(self, tier: Tier, keys: list[Key], bit: int) -> list[Key]:
        """Record that `bit` holds `keys` (each key once). Return the keys that `bit` did not hold before."""
        entered = cast("list[Key]", self.tables[tier].add(cast("list[int]", keys), bit))
        self.blocks[tier] += len(entered)
        return entered

    def remove(self, tier: Tier, keys: list[Key], bit: int) -> None:
        """Record that `bit` no longer holds `keys`."""
        self.blocks[tier] -= len(keys)
        self.clear(tier, keys, bit)

    def clear(self, tier: Tier, keys: list[Key], bit: int) -> None:
        """Clear `bit` from `keys` in the table, leaving `blocks` unchanged: for bits that are no longer counted."""
        self.tables[tier].clear(cast("list[int]", keys), bit)

    def holds(self, tier: Tier, key: Key, bit: int) -> bool:
        return self.tables[tier].bits(key) & bit != 0

    def bisect(self, keys: Sequence[Key], bits: int) -> dict[int, int]:
        """Return the number of leading blocks on the GPU, by group of bits that hold equally many; bits that hold
        none are absent. All of `bits` must be contiguous.
        """
        return self.tables[Tier.GPU].bisect(keys, bits)

    def walk(self, tier: Tier, keys: Sequence[Key], bits: int) -> dict[int, int]:
        """Return the number of leading blocks in `tier` or a faster one, grouped as in `bisect`."""
        return self.tables[Tier.GPU].walk(keys, bits, self.tables[Tier.CPU : tier + 1])

    def memory_bytes(self, blocks: Sequence[int]) -> int:
        """Estimate a target's share of the tables' memory, from its number of `blocks` in each tier. O(1)."""
        sizes = map(getsizeof, self.tables)
        return sum(size * its // max(1, all_) for size, its, all_ in zip(sizes, blocks, self.blocks, strict=True))


def single_bits(bits: int) -> Iterator[int]:
    """Yield the single bits of `bits`, lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest
        bits ^= lowest
