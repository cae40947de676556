"""One target's story: what it serves, what its event stream came to, and whether that is all there is to know.

A stream that was joined late is silent about what was cached before. It becomes the whole truth when as many blocks
have been stored since as the target can hold: what it had before has left by then.
"""

from __future__ import annotations

from collections import Counter

from router.kvcache.event_sequencer import EventSequencer
from router.kvcache.events import EventBatch


class TargetCacheState:
    """Until the target leaves, or joins anew."""

    __slots__ = (
        "batches",
        "block_tokens",
        "capacity_blocks",
        "malformed",
        "model",
        "sequencer",
        "skipped",
        "stored_blocks"
    )  # fmt: skip

    def __init__(self, model: str) -> None:
        self.model = model
        self.sequencer: EventSequencer | None = None
        self.block_tokens: int | None = None
        self.capacity_blocks: int | None = None
        self.stored_blocks = 0  # on its GPU, since what is known of it began
        self.batches = 0
        self.malformed = 0
        self.skipped: Counter[str] = Counter()

    @property
    def turned_over(self) -> bool:
        return self.capacity_blocks is not None and self.stored_blocks >= self.capacity_blocks

    @property
    def certain(self) -> bool:
        """What the index says of it is what there is to believe, and what it does not say, too."""
        book = self.sequencer
        return book is not None and book.trusted and (not book.joined_late or self.turned_over)

    def count(self, batch: EventBatch) -> None:
        """It was heard or replayed."""
        self.batches += 1
        self.skipped.update(batch.skipped)
