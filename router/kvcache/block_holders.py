"""Who holds a block: for each tier a table from its key to one bit per target, shared by all targets.

A target is a bit, so "who still holds the prefix" is one AND per block, however many targets there are. Two ways to
find how far each target goes along a prompt:

*Walk* (`walked`): block by block, until the last target has dropped out. Right for whatever is held.

*Bisect* (`bisected`): ask for the block in the middle; whoever holds it goes on in the second half, the others in the
first. Right only for targets that hold no block without the one before it (`runs.py`): 13 questions instead of 5,000.

A block with one holder has that target's own bit object as its value, and the most common one costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from operator import or_

from router.kvcache.events import Key, Tier


class BlockHolders:
    """Bits are given out elsewhere."""

    def __init__(self) -> None:
        self.tables: tuple[dict[Key, int], ...] = ({}, {}, {})  # by tier; no key without a bit
        self.blocks = [0, 0, 0]  # by tier: blocks of all targets that are there

    def add(self, tier: Tier, keys: list[Key], bit: int) -> list[Key]:
        """`bit` holds `keys`, each of them once. Returns those that it did not hold."""
        table = self.tables[tier]
        if table.keys().isdisjoint(keys):
            table.update(zip(keys, repeat(bit)))
            entered = keys
        else:
            entered = []
            for key in keys:
                bits = table.get(key, 0)
                if not bits & bit:
                    table[key] = bits | bit if bits else bit
                    entered.append(key)
        self.blocks[tier] += len(entered)
        return entered

    def remove(self, tier: Tier, keys: Sequence[Key], bit: int) -> None:
        """`bit` holds `keys` no more."""
        self.blocks[tier] -= len(keys)
        self.clear(tier, keys, bit)

    def clear(self, tier: Tier, keys: Sequence[Key], bit: int) -> None:
        """The same for a bit whose blocks are not counted any more."""
        table = self.tables[tier]
        for key in keys:
            bits = table.get(key, 0)
            if bits == bit:
                del table[key]
            elif bits & bit:
                table[key] = bits ^ bit

    def holds(self, tier: Tier, key: Key, bit: int) -> bool:
        return self.tables[tier].get(key, 0) & bit != 0

    def bisect(self, keys: Sequence[Key], bits: int) -> dict[int, int]:
        """Leading blocks on the GPU of `bits`, all of them whole, by the bits that go equally far together; who holds
        none is absent.

        One question per halving and per group of targets that still goes together: 200 ns each.
        """
        holding = self.tables[Tier.GPU].get
        runs: dict[int, int] = {}
        open_ = [(0, len(keys), bits)] if bits else []  # these bits hold `low` blocks at least and `high` at most
        while open_:
            low, high, bits = open_.pop()
            while low < high:
                middle = (low + high) >> 1
                further = holding(keys[middle], 0) & bits
                if further == bits:
                    low = middle + 1
                else:
                    if further:
                        open_.append((middle + 1, high, further))
                        bits ^= further
                    high = middle
            if low:
                runs[bits] = low
        return runs

    def walk(self, tier: Tier, keys: Sequence[Key], bits: int) -> dict[int, int]:
        """Leading blocks in `tier` or a faster one of `bits`, by the bits that go equally far together; who holds none
        is absent. 50 ns per block.
        """
        holding: Iterator[int] = map(self.tables[Tier.GPU].get, keys, repeat(0))
        for slower in self.tables[Tier.CPU : tier + 1]:
            holding = map(or_, holding, map(slower.get, keys, repeat(0)))
        return _runs(holding, bits, len(keys))


def _runs(holding: Iterable[int], alive: int, length: int) -> dict[int, int]:
    """Leading blocks of the bits of `alive`, given who holds each of `length` blocks in turn."""
    runs: dict[int, int] = {}
    if not alive or not length:
        return runs
    for position, bits in enumerate(holding):
        if alive & bits != alive:
            if position:
                runs[alive & ~bits] = position
            alive &= bits
            if not alive:
                return runs
    runs[alive] = length
    return runs


def single(bits: int) -> Iterator[int]:
    """The single bits of `bits`, lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest
        bits ^= lowest
