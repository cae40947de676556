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

from router.kvcache.block_group import Label, decrement
from router.kvcache.events import Key


class TailKind:
    """The groups of one target with the same blocks and windows. A hit needs the last `need` blocks before it in all
    of them; `leading`: or, if there are fewer, all blocks from the beginning.
    """

    __slots__ = ("_counts", "block_tokens", "groups", "held", "leading", "need")

    def __init__(self, block_tokens: int, need: int, *, leading: bool) -> None:
        self.block_tokens = block_tokens
        self.need = need
        self.leading = leading
        self.groups = 0
        self.held: set[Key] = set()  # by all groups
        self._counts: dict[Key, int] = {}  # of the groups that hold a key

    def add_group(self) -> None:
        """Count one more group, which holds nothing yet."""
        self.groups += 1
        self.held.clear()

    def enter(self, key: Key) -> None:
        """Record that one more group holds `key`."""
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count == self.groups:
            self.held.add(key)

    def leave(self, key: Key) -> None:
        """Record that one group less holds `key`."""
        self.held.discard(key)
        decrement(self._counts, key)

    def find_tail(self, keys: Sequence[Key], blocks: int, block_tokens: int, align: int, more: int = 0) -> int:
        """Return the largest number of blocks of `block_tokens`, at most `blocks` and a multiple of `align`, of which
        all groups hold the last `need` of their own and the `more` blocks after them.
        """
        need, unit = self.need + more, max(1, self.block_tokens // block_tokens)
        if not self.leading:
            unit = 1  # a state is looked up wherever it may be, also inside its block
        elif self.block_tokens < block_tokens:  # only those at the end of a block can be looked up
            need = -(-need * self.block_tokens // block_tokens)
        held, end = self.held, blocks - blocks % align + more
        while end >= need * unit:
            n = end // unit - need
            while n < end // unit and keys[(n + 1) * unit - 1] in held:
                n += 1
            if n == end // unit:
                return end - more
            end = n * unit  # no tail that contains the first missing block will do
            end -= end % align
        n = 0
        while self.leading and n < end // unit and keys[(n + 1) * unit - 1] in held:
            n += 1
        return max(0, n * unit - n * unit % align - more)


class TailGroup:
    """The tails of one group."""

    __slots__ = ("_copies", "_keys", "kind", "unnamed")

    def __init__(self, kind: TailKind) -> None:
        self.kind = kind
        kind.add_group()
        self.unnamed: set[Label] = set()  # held, with unknown keys
        self._keys: dict[Label, Key | None] = {}
        self._copies: dict[Label, int] = {}  # beyond the first, never 0

    def __len__(self) -> int:
        """Number of different blocks."""
        return len(self._keys)

    def store(self, labels: Iterable[Label], key_of: Callable[[Label], Key | None]) -> None:
        """Add one copy of each block; `key_of` returns the key of a label, None if it is not known yet."""
        for label in labels:
            if label in self._keys:
                self._copies[label] = self._copies.get(label, 0) + 1
                continue
            key = self._keys[label] = key_of(label)
            if key is None:
                self.unnamed.add(label)
            else:
                self.kind.enter(key)

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
                key = self._keys.pop(label)
                self.unnamed.discard(label)
                if key is not None:
                    self.kind.leave(key)

    def saved(self) -> Iterator[tuple[Label, Key | None, int]]:
        """Yield each block: its label, its key and its number of copies."""
        return ((label, key, 1 + self._copies.get(label, 0)) for label, key in self._keys.items())


class Tails:
    """All groups of one target that keep only tails; none for a model with full attention only."""

    __slots__ = ("groups", "kinds")

    def __init__(self) -> None:
        self.groups: dict[int, TailGroup] = {}
        self.kinds: list[TailKind] = []

    def group(self, number: int, block_tokens: int, need: int, *, leading: bool) -> TailGroup:
        """Return the group with this number; create it if necessary."""
        if (group := self.groups.get(number)) is not None:
            return group
        for kind in self.kinds:
            if (kind.block_tokens, kind.need, kind.leading) == (block_tokens, need, leading):
                break
        else:
            kind = TailKind(block_tokens, need, leading=leading)
            self.kinds.append(kind)
        group = self.groups[number] = TailGroup(kind)
        return group

    def emptied(self) -> Tails:
        """Return the same groups without blocks."""
        empty = Tails()
        for number, group in self.groups.items():
            empty.group(number, group.kind.block_tokens, group.kind.need, leading=group.kind.leading)
        return empty

    def count_reusable(self, keys: Sequence[Key], blocks: int, block_tokens: int, *, drafts: bool = False) -> int:
        """Return how many of the first `blocks` blocks of a prompt, of `block_tokens` and all held by full attention,
        are re-used; all if blocks of a group and of full attention cannot end at the same places. `drafts`: full
        attention holds one block more, and windows must hold it, too.
        """
        align = 1
        for kind in self.kinds:
            if kind.block_tokens != block_tokens:
                if kind.block_tokens % block_tokens and block_tokens % kind.block_tokens:
                    return blocks
                align = self.find_alignment(block_tokens)
        before = -1
        while blocks != before:
            before = blocks
            for kind in self.kinds:
                more = int(drafts and kind.leading and kind.block_tokens == block_tokens and align == 1)
                blocks = kind.find_tail(keys, blocks, block_tokens, align, more)
            if len(self.kinds) == 1:
                break
        return blocks

    def find_alignment(self, block_tokens: int) -> int:
        """Return the number of blocks of `block_tokens` of which a hit is a multiple: where blocks of all sizes end, or
        anywhere if states alone have larger blocks, because states are found inside their blocks.
        """
        smallest = min(block_tokens, *(kind.block_tokens for kind in self.kinds))
        if all(kind.block_tokens == smallest for kind in self.kinds if kind.leading):
            return 1
        return lcm(*(max(1, kind.block_tokens // block_tokens) for kind in self.kinds))
