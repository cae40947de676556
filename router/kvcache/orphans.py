"""The store events of one target that wait for an unknown parent: bounded in number and memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from sys import getsizeof
from typing import Any

from router.kvcache.events import BlocksStored

ORPHAN_BYTES = 4 * 1024 * 1024  # limit on their memory, besides the limit on their number
EVENT_BYTES = 1000  # counted per event: 4,000 events that wait for one parent are applied at once, in 30 ms
CROWDED_BLOCKS = 256  # fewer are not searched for blocks that are gone


class Orphans:
    """At most `limit_blocks`, counted in `blocks`. Hashes are the 60 bits that `TargetBlocks` keeps."""

    __slots__ = ("_bytes", "_crowded_blocks", "_events", "_limit_blocks", "_parents", "blocks")

    def __init__(self, limit_blocks: int) -> None:
        self._limit_blocks = limit_blocks
        self.blocks = 0
        self._bytes = 0
        self._crowded_blocks = CROWDED_BLOCKS
        self._events: dict[tuple[int, int], list[BlocksStored]] = {}  # by group and parent
        self._parents: set[int] = set()

    def __bool__(self) -> bool:
        return bool(self._events)

    @property
    def are_crowded(self) -> bool:
        """Whether there are at least `CROWDED_BLOCKS`, and twice as many as `drop_gone` left."""
        return self.blocks >= self._crowded_blocks

    def drop_gone(self, is_cached: Callable[[int, int], bool]) -> None:
        """Drop the events none of whose blocks is cached (`is_cached`: by group and hash). No other block needs them: a
        chain is followed through cached blocks only.
        """
        for (group, parent), events in list(self._events.items()):
            kept = [event for event in events if any(is_cached(group, hash_) for hash_ in event.hashes)]
            if len(kept) == len(events):
                continue
            self._count(events, -1)
            self._count(kept, 1)
            if kept:
                self._events[group, parent] = kept
            else:
                del self._events[group, parent]
                self._parents.discard(parent)
        self._crowded_blocks = max(CROWDED_BLOCKS, 2 * self.blocks)

    def is_awaited(self, group: int, hash_: int) -> bool:
        """Return whether an event waits for this block."""
        return (group, hash_) in self._events

    def add(self, event: BlocksStored) -> None:
        """Let an event wait. Beyond a limit the oldest events are dropped: their parents are the least likely to
        arrive.
        """
        assert event.parent is not None
        self._events.setdefault((event.group, event.parent), []).append(event)
        self._parents.add(event.parent)
        self._count([event], 1)
        while self.blocks > self._limit_blocks or self._bytes > ORPHAN_BYTES:
            oldest = next(iter(self._events))
            self._count([self._events[oldest].pop(0)], -1)
            if not self._events[oldest]:
                del self._events[oldest]
                self._parents.discard(oldest[1])

    def take(self, group: int, parent: int) -> list[BlocksStored]:
        """Remove and return the events that wait for a block."""
        if not self._events or (events := self._events.pop((group, parent), None)) is None:
            return []
        self._parents.discard(parent)
        self._count(events, -1)
        return events

    def find(self, group: int, parent: int) -> Sequence[BlocksStored]:
        """Return the events that wait for a block."""
        return self._events.get((group, parent), ())

    def parents(self, hashes: Set[int]) -> Set[int]:
        """Return those of `hashes` for which events wait."""
        return self._parents & hashes

    def table(self) -> dict[Any, Any]:
        """Return the table of events, for a caller that empties it piece by piece."""
        return self._events

    def memory_bytes(self) -> int:
        """Estimate the memory that the events take. O(1)."""
        return getsizeof(self._events) + getsizeof(self._parents) + self._bytes

    def _count(self, events: Sequence[BlocksStored], sign: int) -> None:
        for event in events:
            self.blocks += sign * len(event.hashes)
            extras = sum(map(len, event.extras)) if event.extras is not None else 0
            self._bytes += sign * (EVENT_BYTES + 4 * len(event.token_ids) + extras)
