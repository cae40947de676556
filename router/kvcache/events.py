"""What an engine tells of its cache, free of any wire format: the domain's own words.

`engines/` turns bytes into these; `stream.py` puts them in order; `index.py` applies them. An engine's block hash is
an opaque 64-bit label here (`EngineHash`), good for removals and parents on the same rank and for nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple, NewType

EngineHash = NewType("EngineHash", int)
Key = NewType("Key", int)  # our own chained hash of a block, 60 bits
TargetId = NewType("TargetId", str)  # "instance/rank"


class Tier(IntEnum):
    """Where cached KV lies, fastest first. The pool is shared by all and never indexed per target."""

    GPU = 0
    CPU = 1
    DISK = 2


class BlocksStored(NamedTuple):
    """Consecutive blocks entered the cache: `len(token_ids) == block_tokens * len(hashes)`, full attention only."""

    hashes: list[EngineHash]
    parent: EngineHash | None  # None: begins at token 0
    token_ids: Sequence[int]  # best an array("I"): keys are made from it without a copy
    block_tokens: int
    tier: Tier
    group: int
    adapter: str | None  # LoRA name
    salt: str | None  # only ever on a chain's first block
    extras: tuple[bytes, ...] | None  # per block: what else the engine hashed (media ids), b"" for none; None: all none


class BlocksRemoved(NamedTuple):
    """One physical copy of each of these left the tier."""

    hashes: list[EngineHash]
    tier: Tier
    group: int


class BlocksPooled(NamedTuple):
    """This engine put consecutive blocks into the shared pool. A hint: nothing tells when they leave it."""

    hashes: list[EngineHash]
    parent: EngineHash | None  # None: begins at token 0
    token_ids: Sequence[int]  # empty where the engine did not say
    block_tokens: int


class BlocksCleared(NamedTuple):
    """Everything this rank held is gone, in every tier."""


CacheEvent = BlocksStored | BlocksRemoved | BlocksCleared  # of a target's own cache
Event = CacheEvent | BlocksPooled


class EventBatch(NamedTuple):
    """What one message carried. `skipped` counts, by reason, events that say nothing about token blocks."""

    seq: int
    wall_s: float  # the engine's clock when it built the batch
    rank: int | None
    events: list[Event]
    skipped: dict[str, int]
