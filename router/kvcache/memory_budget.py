"""A byte budget shared by all caches of prompt data.

Caches take bytes when they store something and give these bytes back when it is gone. A cache that can evict single
entries (`prompt/tokenization/prefix_cache.py`) registers its evictor, which is called whichever cache needs space,
so the limit holds for all caches together.
"""

from __future__ import annotations

from collections.abc import Callable


class MemoryBudget:
    """Bytes in use under one limit. Not thread-safe: belongs to the event loop's thread, like the caches under
    it.
    """

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.held_bytes = 0
        self.evicted = 0  # entries evicted to stay within the limit
        self._evict: Callable[[], bool] = lambda: False

    def set_evictor(self, evict: Callable[[], bool]) -> None:
        """Register the function that evicts the least recently used entry, giving back its bytes; False when
        empty.
        """
        self._evict = evict

    def take(self, bytes_: int) -> None:
        self.held_bytes += bytes_
        while self.held_bytes > self.limit_bytes and self._evict():
            self.evicted += 1

    def give(self, bytes_: int) -> None:
        self.held_bytes -= bytes_
