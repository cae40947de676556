"""KV cache groups of which an engine keeps only tails: sliding windows, and the states of Mamba and linear attention.

A hybrid model has such groups beside full attention. Its engine re-uses a prompt up to a point only if full attention
holds all blocks before it, and each other group the last few of them: those that a window reaches back to, or the one
with the state. By default an engine keeps these tails where a prompt ended and where prompts were found to part, so
much less is re-used than full attention holds (vLLM 0.32, v1/core/kv_cache_coordinator.py and
single_type_kv_cache_manager.py).

    full attention     # # # # # # # # # # . .      holds 10 blocks of the prompt
    sliding window     . . # # # # . . . . . .      of 4 blocks: 6 blocks are re-used

The blocks of all groups have the same hashes, but an event of a tail does not show where in a chain its blocks are:
their keys are those of the same hashes in full attention, which may be announced later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import lcm
from typing import NamedTuple

from router.kvcache.block_group import Label, decrement
from router.kvcache.events import Key


class TailShape(NamedTuple):
    """The blocks of a group that a hit requires: the last `need` before it; `leading`: or, if there are fewer, all from
    the beginning.
    """

    block_tokens: int
    need: int
    leading: bool


TailTable = dict[Key, int]
"""For each block the bits of the targets that hold it in all their groups of one shape."""


def find_tails(
    keys: Sequence[Key], held: Sequence[tuple[int, int]], kinds: Sequence[tuple[TailShape, TailTable]]
) -> list[tuple[int, int]]:
    """Return how many leading blocks of a prompt are re-used, and the bits of the targets for which this is so; those
    that re-use nothing are absent. `held`: the same of full attention, the largest number first. All targets have
    groups of these `kinds`, with blocks of one size.
    """
    last = kinds[0][1]
    found: list[tuple[int, int]] = []
    left = end = following = 0
    while True:
        if not left:  # go on with those that hold fewer blocks
            if following == len(held):
                break
            end = held[following][0]
        while following < len(held) and held[following][0] >= end:
            left |= held[following][1]
            following += 1
        if not end:
            break
        bits = left & last.get(keys[end - 1], 0)
        if bits:
            for shape, table in kinds:
                for key in keys[max(0, end - shape.need) : end]:
                    bits &= table.get(key, 0)
                    if not bits:
                        break
            if bits:
                found.append((end, bits))
                left ^= bits
        end -= 1
    return found


class TailKind:
    """The groups of one target with the same shape. `bit` is the target's in `table`."""

    __slots__ = ("_bit", "_counts", "_table", "groups", "shape")

    def __init__(self, shape: TailShape, table: TailTable, bit: int) -> None:
        self.shape = shape
        self.groups = 0
        self._table = table
        self._bit = bit
        self._counts: dict[Key, int] = {}  # of the groups that hold a key

    def add_group(self) -> None:
        """Count one more group, which holds nothing yet."""
        for key, count in self._counts.items():
            if count == self.groups:
                clear_tail(self._table, key, self._bit)
        self.groups += 1

    def holds(self, key: Key) -> bool:
        """Return whether all groups hold `key`."""
        return bool(self._table.get(key, 0) & self._bit)

    def retire(self) -> tuple[TailTable, dict[Key, int]]:
        """Return the table, and a dictionary with all keys for which the target's bit may be set."""
        return self._table, self._counts

    def enter(self, key: Key) -> None:
        """Record that one more group holds `key`."""
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count == self.groups:
            self._table[key] = self._table.get(key, 0) | self._bit

    def leave(self, key: Key) -> None:
        """Record that one group less holds `key`."""
        if self._counts.get(key) == self.groups:
            clear_tail(self._table, key, self._bit)
        decrement(self._counts, key)

    def find_tail(self, keys: Sequence[Key], blocks: int, block_tokens: int, align: int, more: int = 0) -> int:
        """Return the largest number of blocks of `block_tokens`, at most `blocks` and a multiple of `align`, of which
        all groups hold the last `need` of their own and the `more` blocks after them.
        """
        size, need, leading = self.shape
        need, unit = need + more, max(1, size // block_tokens)
        if not leading:
            unit = 1  # a state is looked up wherever it may be, also inside its block
        elif size < block_tokens:  # only those at the end of a block can be looked up
            need = -(-need * size // block_tokens)
        table, bit, end = self._table, self._bit, blocks - blocks % align + more
        while end >= need * unit:
            n = end // unit - need
            while n < end // unit and table.get(keys[(n + 1) * unit - 1], 0) & bit:
                n += 1
            if n == end // unit:
                return end - more
            end = n * unit  # no tail that contains the first missing block will do
            end -= end % align
        n = 0
        while leading and n < end // unit and table.get(keys[(n + 1) * unit - 1], 0) & bit:
            n += 1
        return max(0, n * unit - n * unit % align - more)


def clear_tail(table: TailTable, key: Key, bit: int) -> None:
    """Clear `bit` of `key`, if it is set."""
    bits = table.get(key, 0) & ~bit
    if bits:
        table[key] = bits
    else:
        table.pop(key, None)


class TailGroup:
    """The tails of one group."""

    __slots__ = ("_copies", "_keys", "_recalled", "kind", "unnamed")

    def __init__(self, kind: TailKind) -> None:
        self.kind = kind
        kind.add_group()
        self.unnamed: set[Label] = set()  # held, with unknown keys
        self._keys: dict[Label, Key | None] = {}
        self._copies: dict[Label, int] = {}  # beyond the first, never 0
        self._recalled: set[Label] = set()  # held by evidence other than an event

    def __len__(self) -> int:
        """Number of different blocks."""
        return len(self._keys)

    def store(self, labels: Iterable[Label], key_of: Callable[[Label], Key | None]) -> None:
        """Add one copy of each block; `key_of` returns the key of a label, None if it is not known yet."""
        for label in labels:
            if label in self._recalled:
                self._recalled.discard(label)  # the copy that was recalled, announced now
                continue
            if label in self._keys:
                self._copies[label] = self._copies.get(label, 0) + 1
                continue
            key = self._keys[label] = key_of(label)
            if key is None:
                self.unnamed.add(label)
            else:
                self.kind.enter(key)

    def recall(self, labels: Iterable[Label], key_of: Callable[[Label], Key | None]) -> None:
        """Add blocks that an answer proves to be held, although no event announced them."""
        missed = [label for label in labels if label not in self._keys]
        self.store(missed, key_of)
        self._recalled.update(missed)

    def name(self, label: Label, key: Key) -> None:
        """Set the key of a block that is held without one; a no-op for all others."""
        if label in self.unnamed:
            self.unnamed.discard(label)
            self._keys[label] = key
            self.kind.enter(key)

    def remove(self, labels: Iterable[Label]) -> None:
        """Remove one copy of each block."""
        for label in labels:
            if not decrement(self._copies, label) and label in self._keys:
                self._recalled.discard(label)
                key = self._keys.pop(label)
                self.unnamed.discard(label)
                if key is not None:
                    self.kind.leave(key)

    def saved(self) -> Iterator[tuple[Label, Key | None, int]]:
        """Yield each block: its label, its key and its number of copies."""
        return ((label, key, 1 + self._copies.get(label, 0)) for label, key in self._keys.items())


class Tails:
    """All groups of one target that keep only tails; none for a model with full attention only. `bit` is the target's
    in `tables`.
    """

    __slots__ = ("_bit", "_tables", "groups", "kinds")

    def __init__(self, tables: dict[TailShape, TailTable], bit: int) -> None:
        self.groups: dict[int, TailGroup] = {}
        self.kinds: dict[TailShape, TailKind] = {}
        self._tables = tables
        self._bit = bit

    def group(self, number: int, shape: TailShape) -> TailGroup:
        """Return the group with this number; create it if necessary."""
        if (group := self.groups.get(number)) is not None:
            return group
        if (kind := self.kinds.get(shape)) is None:
            kind = self.kinds[shape] = TailKind(shape, self._tables.setdefault(shape, {}), self._bit)
        group = self.groups[number] = TailGroup(kind)
        return group

    def adopt_groups(self, other: Tails) -> None:
        """Create the groups that `other` has, without blocks."""
        for number, group in other.groups.items():
            self.group(number, group.kind.shape)

    def count_reusable(self, keys: Sequence[Key], blocks: int, block_tokens: int, *, drafts: bool = False) -> int:
        """Return how many of the first `blocks` blocks of a prompt, of `block_tokens` and all held by full attention,
        are re-used; all if blocks of a group and of full attention cannot end at the same places. `drafts`: full
        attention holds one block more, and windows must hold it, too.
        """
        align = 1
        for size, _, _ in self.kinds:
            if size != block_tokens:
                if size % block_tokens and block_tokens % size:
                    return blocks
                align = self.find_alignment(block_tokens)
        before = -1
        while blocks != before:
            before = blocks
            for shape, kind in self.kinds.items():
                more = int(drafts and shape.leading and shape.block_tokens == block_tokens and align == 1)
                blocks = kind.find_tail(keys, blocks, block_tokens, align, more)
            if len(self.kinds) == 1:
                break
        return blocks

    def find_alignment(self, block_tokens: int) -> int:
        """Return the number of blocks of `block_tokens` of which a hit is a multiple: where blocks of all sizes end, or
        anywhere if states alone have larger blocks, because states are found inside their blocks.
        """
        smallest = min(block_tokens, *(shape.block_tokens for shape in self.kinds))
        if all(shape.block_tokens == smallest for shape in self.kinds if shape.leading):
            return 1
        return lcm(*(max(1, shape.block_tokens // block_tokens) for shape in self.kinds))
