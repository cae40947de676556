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

from router.kvcache.block_group import Label
from router.kvcache.events import Key


class TailGroup:
    """The tails of one group of one target. A hit needs the last `need` blocks before it; `leading`: or, if there
    are fewer, all blocks from the beginning.
    """

    __slots__ = ("_copies", "_keys", "block_tokens", "held", "leading", "need", "unnamed")

    def __init__(self, block_tokens: int, need: int, *, leading: bool) -> None:
        self.block_tokens = block_tokens
        self.need = need
        self.leading = leading
        self.held: set[Key] = set()
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
                self.held.add(key)

    def name(self, label: Label, key: Key) -> None:
        """Set the key of a block that is held without one; a no-op for all others."""
        if label in self.unnamed:
            self.unnamed.discard(label)
            self._keys[label] = key
            self.held.add(key)

    def remove(self, labels: Iterable[Label]) -> None:
        """Remove one copy of each block."""
        for label in labels:
            if (count := self._copies.get(label, 0)) > 0:
                if count == 1:
                    del self._copies[label]
                else:
                    self._copies[label] = count - 1
            elif label in self._keys:
                key = self._keys.pop(label)
                self.unnamed.discard(label)
                if key is not None:
                    self.held.discard(key)

    def saved(self) -> Iterator[tuple[Label, Key | None, int]]:
        """Yield each block: its label, its key and its number of copies."""
        return ((label, key, 1 + self._copies.get(label, 0)) for label, key in self._keys.items())


def find_reusable(keys: Sequence[Key], blocks: int, groups: Iterable[TailGroup]) -> int:
    """Return how many of the first `blocks` blocks of a prompt, all held by full attention, are re-used."""
    kinds: dict[tuple[int, bool], list[set[Key]]] = {}
    for group in groups:
        kinds.setdefault((group.need, group.leading), []).append(group.held)
    before = -1
    while blocks != before:
        before = blocks
        for (need, leading), held in kinds.items():
            blocks = _find_tail(keys, blocks, need, held, leading=leading)
    return blocks


def _find_tail(keys: Sequence[Key], blocks: int, need: int, held: Sequence[set[Key]], *, leading: bool) -> int:
    """Return the largest number of blocks, at most `blocks`, of which all groups hold the last `need`."""
    end = blocks
    while end >= need:
        # No tail that contains the first missing block will do.
        missing = next((n for n in range(end - need, end) if not _is_held(Key(keys[n]), held)), None)
        if missing is None:
            return end
        end = missing
    if not leading:
        return 0
    return next((n for n in range(end) if not _is_held(Key(keys[n]), held)), end)


def _is_held(key: Key, held: Sequence[set[Key]]) -> bool:
    return all(key in one for one in held)
