"""Cache events of an engine, free of any wire format.

`backends/vllm` decodes them, `event_sequencer.py` orders them and `index.py` applies them. An engine's block hash
is an opaque 64-bit label here (`EngineHash`), valid for removals and parents on the same rank and for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, NewType, Protocol

EngineHash = NewType("EngineHash", int)
Key = NewType("Key", int)  # our own chained hash of a block, 60 bits
TargetId = NewType("TargetId", str)  # "instance/rank"


class Tier(IntEnum):
    """Storage tier of cached KV, fastest first. The pool is shared by all instances and never indexed per
    target.
    """

    GPU = 0
    CPU = 1
    DISK = 2


class BlocksStored(NamedTuple):
    """Consecutive blocks entered the cache: `len(token_ids) == block_tokens * len(hashes)`, full attention only."""

    hashes: list[EngineHash]
    parent: EngineHash | None  # None: begins at token 0
    token_ids: Sequence[int]  # an array("I") is hashed without a copy
    block_tokens: int
    tier: Tier
    group: int
    adapter: str | None  # LoRA name
    salt: str | None  # only ever on a chain's first block
    extras: tuple[bytes, ...] | None  # per block: other hashed values (media ids), b"" for none; None: none at all


class TailsStored(NamedTuple):
    """Blocks of a group that keeps only tails (`tail_groups.py`) entered the GPU cache. A hit needs the last `need`
    blocks before it; `leading`: or, if there are fewer, all blocks from the beginning.
    """

    hashes: list[EngineHash]
    group: int
    block_tokens: int
    need: int
    leading: bool
    from_start: bool  # the event names every block from a chain's beginning: it may report a hit, and store nothing


class BlocksRemoved(NamedTuple):
    """One physical copy of each of these blocks left the tier."""

    hashes: list[EngineHash]
    tier: Tier
    group: int


class BlocksPooled(NamedTuple):
    """This engine put consecutive blocks into the shared pool. A hint: no event reports when they leave it."""

    hashes: list[EngineHash]
    parent: EngineHash | None  # None: begins at token 0
    token_ids: Sequence[int]  # empty where the engine did not send them
    block_tokens: int


class BlocksCleared(NamedTuple):
    """All blocks of this rank are gone, in every tier."""


CacheEvent = BlocksStored | TailsStored | BlocksRemoved | BlocksCleared  # about a target's own cache
BlockEvent = BlocksStored | TailsStored | BlocksRemoved | BlocksPooled  # names its blocks
Event = CacheEvent | BlocksPooled


class EventBatch(NamedTuple):
    """The content of one message. `skipped` counts, by reason, events that carry no token blocks."""

    seq: int
    wall_s: float  # by the engine's clock, when it built the batch
    rank: int | None
    events: list[Event]
    skipped: dict[str, int]
    size_bytes: int = 0  # of the message


class StoredBlockObserver(Protocol):
    """A second consumer of store events: the shared pool's client, which detects how the engines hash."""

    def on_stored(self, model: str, event: BlocksStored) -> None:
        """Handle blocks from token 0 on that entered an engine's GPU cache."""

    def on_pooled(self, model: str, event: BlocksPooled) -> None:
        """Handle blocks that an engine put into the shared pool."""
