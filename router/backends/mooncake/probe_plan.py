"""Which blocks of a prompt to ask for next, to learn how far its leading run in the pool goes with few small questions.

Up to `at_once` unknown blocks are asked for together: then the answer is exact. A longer prompt is searched in strides:
the first question is spread over all of it, from the first block to the last; the next ones over the gap that is left

    known    + . . . + . . . + . . . - . . . -          + there   - not there   . unknown
                             low^     ^bound
    ask                        o o o

between the last block known to be there and the first known not to be. What room that leaves in a question is spread
over the blocks before the gap, to find holes. Two questions of 256 place the end of a run within 65,000 blocks.

What strides miss. Blocks are evicted one by one, so a run may have holes, and an engine loads only what comes before
the first. A hole is surely found if it is as long as a stride: `length / (at_once - 1)` blocks. Shorter ones are found
by chance, and where a wave of eviction has left many, the first question meets some and the search closes in on the
first of them. The answer never falls short of the true run, and is exact where there is no hole or the length is at
most `2 * at_once - 1`. Pure: knows nothing of keys or sockets.
"""

from __future__ import annotations

from collections.abc import Sequence

from router.backends.mooncake.answer_cache import BlockPresence

LEAST_AT_ONCE = 3  # with fewer a gap would not shrink by a factor


class ProbePlan:
    def __init__(self, words: bytearray, at_once: int) -> None:
        """`words`: what is known to begin with, a `BlockPresence` per block of the prompt. It is filled in."""
        self.presence = words
        self._at_once = max(LEAST_AT_ONCE, at_once)

    @property
    def held(self) -> int:
        """Leading blocks that are there, as far as is known: all before the first that is not."""
        absent = self.presence.find(BlockPresence.ABSENT)
        return len(self.presence) if absent < 0 else absent

    @property
    def in_memory(self) -> int:
        """Those of `held` before the first that is known to lie on disk."""
        on_disk = self.presence.find(BlockPresence.DISK, 0, self.held)
        return self.held if on_disk < 0 else on_disk

    def next_blocks(self) -> Sequence[int]:
        """The unknown blocks to ask for now; none: `held` is the answer."""
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

    def record(self, block: int, word: BlockPresence) -> None:
        self.presence[block] = word

    def _unknown(self, until: int) -> list[int]:
        return [block for block, word in enumerate(self.presence[:until]) if not word]  # UNKNOWN is 0


def _spread(blocks: Sequence[int], count: int) -> list[int]:
    """`count` of `blocks`, evenly from the first to the last. Needs more blocks than that, or as many."""
    if count == 1:
        return [blocks[-1]]
    return [blocks[step * (len(blocks) - 1) // (count - 1)] for step in range(count)]
