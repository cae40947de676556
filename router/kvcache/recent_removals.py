"""The blocks that one target removed most recently.

An answer's `cached_tokens` describes its engine's cache when the prompt was computed. Blocks that were removed
since then must not count as cached again, and a client that reads slowly can delay the answer's end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from router.kvcache.bulk import SHORT

MOST = 16_384  # blocks kept


class RecentRemovals:
    """The latest removals. `count`: number of all blocks removed so far, which is a point in time for `since`."""

    __slots__ = ("_events", "_kept", "count")

    def __init__(self) -> None:
        self.count = 0
        self._events: deque[Sequence[int]] = deque()
        self._kept = 0  # blocks in `_events`

    def add(self, hashes: Sequence[int]) -> None:
        """Add the blocks of an event. O(1)."""
        self._events.append(hashes)
        self.count += len(hashes)
        self._kept += len(hashes)
        while self._kept > MOST:
            self._kept -= len(self._events.popleft())

    def since(self, count: int) -> set[int] | None:
        """Return the hashes, 60 bits each, of the blocks removed since `count`; None: too many to be kept."""
        missing = self.count - count
        if missing > self._kept:
            return None
        removed: set[int] = set()
        for hashes in reversed(self._events):
            if missing <= 0:
                break
            removed.update(hash_ & SHORT for hash_ in hashes)
            missing -= len(hashes)
        return removed
