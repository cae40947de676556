"""State of one target's event stream, and whether the index is complete for it.

A stream joined late does not cover what was cached before. It becomes complete when as many blocks have been stored
since as the target can hold: the earlier ones have been evicted by then.
"""

from __future__ import annotations

from collections import Counter

from router.kvcache.event_sequencer import EventSequencer
from router.kvcache.events import EventBatch


class TargetCacheState:
    """Counters and stream state from one join of the target to the next."""

    __slots__ = (
        *("batches", "block_tokens", "capacity_blocks", "malformed"),
        *("model", "sequencer", "skipped", "stored_blocks"),
    )

    def __init__(self, model: str) -> None:
        self.model = model
        self.sequencer: EventSequencer | None = None
        self.block_tokens: int | None = None
        self.capacity_blocks: int | None = None
        self.stored_blocks = 0  # stored on its GPU since the index of it began
        self.batches = 0
        self.malformed = 0
        self.skipped: Counter[str] = Counter()

    @property
    def turned_over(self) -> bool:
        """Return whether as many blocks were stored since the start as the cache holds."""
        return self.capacity_blocks is not None and self.stored_blocks >= self.capacity_blocks

    @property
    def certain(self) -> bool:
        """Return whether the index is authoritative: what it holds is cached, and what it does not hold is not."""
        sequencer = self.sequencer
        return sequencer is not None and sequencer.trusted and (not sequencer.joined_late or self.turned_over)

    def count(self, batch: EventBatch) -> None:
        """Count a live or replayed batch."""
        self.batches += 1
        self.skipped.update(batch.skipped)
