"""Plans which blocks of a prompt to query, to find the end of its leading run in the pool with few small queries.

Up to `at_once` unknown blocks are queried together: then the answer is exact. A longer prompt is searched in strides:
the first query is spread over all of it, from the first block to the last; the next ones over the remaining gap

    known    + . . . + . . . + . . . - . . . -          + present   - absent   . unknown
                             low^     ^bound
    query                      o o o

between the last block known to be present and the first known to be absent. Remaining space in a query is spread over
the blocks before the gap, to find holes. Two queries of 256 find the end of a run within 65,000 blocks.

What strides miss: blocks are evicted one by one, so a run may have holes, and an engine loads only what comes before
the first. A hole is found for certain if it is as long as a stride: `length / (at_once - 1)` blocks. Shorter ones are
found by chance, and where a wave of eviction has left many, the first query meets some and the search closes in on the
first of them. The answer never falls short of the true run, and is exact where there is no hole or the length is at
most `2 * at_once - 1`. Pure: knows nothing of keys or sockets.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.backends.mooncake.answer_cache import BlockPresence

LEAST_AT_ONCE = 3  # with fewer a gap would not shrink by a factor


class ProbePlan:
    """The search for the end of one prompt's run."""

    def __init__(self, presence: bytearray, at_once: int) -> None:
        """`presence`: what is known at the start, a `BlockPresence` per block of the prompt. It is filled in."""
        self.presence = presence
        self._at_once = max(LEAST_AT_ONCE, at_once)

    @property
    def held(self) -> int:
        """Leading blocks that are present, as far as known: all before the first absent one."""
        absent = self.presence.find(BlockPresence.ABSENT)
        return len(self.presence) if absent < 0 else absent

    @property
    def in_memory(self) -> int:
        """Blocks of `held` before the first one known to be on disk only."""
        on_disk = self.presence.find(BlockPresence.DISK, 0, self.held)
        return self.held if on_disk < 0 else on_disk

    def next_blocks(self) -> Sequence[int]:
        """Return the unknown blocks to query next; empty: `held` is the answer."""
        bound = self.held
        unknown = self.presence.count(BlockPresence.UNKNOWN, 0, bound)
        if unknown <= self._at_once:
            return self._unknown(bound)
        low = len(self.presence[:bound].rstrip(bytes((BlockPresence.UNKNOWN,))))
        gap = range(low, bound)
        if not gap:
            return []
        if len(gap) >= self._at_once:
            return _spread(gap, self._at_once)
        return [*_spread(self._unknown(low), self._at_once - len(gap)), *gap]

    def record(self, block: int, presence: BlockPresence) -> None:
        """Record the presence of one block."""
        self.presence[block] = presence

    def _unknown(self, until: int) -> list[int]:
        return [block for block, word in enumerate(self.presence[:until]) if not word]  # UNKNOWN is 0


def _spread(blocks: Sequence[int], count: int) -> list[int]:
    """Return `count` of `blocks`, evenly from the first to the last; needs at least `count` blocks."""
    if count == 1:
        return [blocks[-1]]
    return [blocks[step * (len(blocks) - 1) // (count - 1)] for step in range(count)]
