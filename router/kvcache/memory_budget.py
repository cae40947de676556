"""One budget in bytes for all that is remembered of prompts, whichever room remembers it.

Rooms take bytes before they keep something and give them back when it is gone. What can be forgotten piece by piece
(`prompt/tokenization/prefix_cache.py`) registers how: it makes room whoever needs it, so the limit holds for all of
them together.
"""

from __future__ import annotations

from collections.abc import Callable


class MemoryBudget:
    """Belongs to the event loop's thread, as everything that is kept under it."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.evicted = 0  # things forgotten for want of room, of whatever kind
        self._forget_oldest: Callable[[], bool] = lambda: False

    def set_evictor(self, forget_oldest: Callable[[], bool]) -> None:
        """Whom to ask for room: it forgets what was not used for longest and gives its bytes, or says False."""
        self._forget_oldest = forget_oldest

    def take(self, bytes_: int) -> None:
        self.held_bytes += bytes_
        while self.held_bytes > self.limit_bytes and self._forget_oldest():
            self.evicted += 1

    def give(self, bytes_: int) -> None:
        self.held_bytes -= bytes_
