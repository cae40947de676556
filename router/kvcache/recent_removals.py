"""The blocks that one target removed most recently.

An answer's `cached_tokens` describes its engine's cache when the prompt was computed. Blocks that were removed
since then must not count as cached again, and a client that reads slowly can delay the answer's end.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from router.kvcache.bulk import SHORT

MOST = 16_384  # blocks kept


class RecentRemovals:
    """The latest removals. `count`: number of all blocks removed so far, which is a point in time for `since`."""

    __slots__ = ("_hashes", "count")

    def __init__(self) -> None:
        self.count = 0
        self._hashes: array[int] = array("Q")  # 60 bits each; up to twice as many as are kept

    def add(self, hashes: Sequence[int]) -> None:
        """Add the blocks of an event."""
        self.count += len(hashes)
        self._hashes.extend([hash_ & SHORT for hash_ in hashes])
        if len(self._hashes) >= 2 * MOST:
            del self._hashes[:-MOST]

    def since(self, count: int) -> set[int] | None:
        """Return the hashes, 60 bits each, of the blocks removed since `count`; None: too many to be kept."""
        missing = self.count - count
        if missing > MOST:
            return None
        return set(self._hashes[len(self._hashes) - missing :])
