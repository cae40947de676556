"""Prompts and caches without engines: token ids with their keys, and the events of an engine that caches them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from router.backends.vllm.kv_event import EventReader
from router.clock import ManualClock
from router.kvcache.block_keys import Keyring
from router.kvcache.events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    EngineHash,
    Event,
    EventBatch,
    TargetId,
    Tier,
)
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt

RING = Keyring(1)


def prompt_of(
    ids: Sequence[int], *sizes: int, complete: bool = True, model: str = "m", adapter: str | None = None
) -> TokenizedPrompt:
    """These token ids as the tokenizer returns them, with keys for blocks of these sizes."""
    tokens = array("I", ids)
    root = RING.root(model, adapter, None)
    keys = {size: RING.chain(root, tokens, size) for size in sizes or (4,)}
    return TokenizedPrompt(tokens, complete, "local", keys, 0.0, 0.0)


def read_batch(events: Iterable[Any], seq: int = 0) -> EventBatch:
    """Return the batch of a message with these events, as they are on the wire."""
    batch = EventBatch(seq, float(seq), 0, [], {})
    reader = EventReader(batch, host_cpu=False)
    for event in events:
        reader.read(event)
    return batch


def promise_each(requests: Iterable[Mapping[str, Any]], block_tokens: int) -> list[int]:
    """Return how many tokens of each request an engine is expected to re-use. `requests`: token ids as `ids`, and as
    `events` those that each caused, as they are on the wire.
    """
    target = TargetId("a/0")
    parts = BlockIndex(RING), SpeculativeBlocks(5.0), ApproximateBlocks(10_000, 600.0)
    indexer, promised = KvIndexer(*parts, ManualClock(1.0)), []
    indexer.join(target, "m", stream=True, replayable=False)
    for number, request in enumerate(requests):
        prompt = prompt_of(request["ids"], block_tokens)._replace(origin=HashInputs("m", None, None, None))
        for _ in indexer.missed.recall(prompt):
            pass
        estimate = indexer.estimate_overlaps(prompt, {target: block_tokens}, frozenset())[target]
        promised.append(0 if estimate.overlap is None else estimate.overlap.gpu_tokens)
        indexer.on_batch(target, read_batch(request["events"], number))
    return promised


class Cache:
    """One rank's cache in blocks of `size`, and the event batches that report its changes."""

    def __init__(self, size: int = 4, adapter: str | None = None) -> None:
        self.size = size
        self.adapter = adapter
        self.seq = -1
        self.wall_s = 0.0

    def batch(self, *events: Event, skipped: dict[str, int] | None = None) -> EventBatch:
        self.seq += 1
        self.wall_s += 1.0
        return EventBatch(self.seq, self.wall_s, 0, list(events), skipped or {})

    def stored(self, ids: Sequence[int], start: int = 0, tier: Tier = Tier.GPU) -> BlocksStored:
        """Event for the full blocks of `ids` from block `start` on."""
        hashes = self.hashes(ids)
        tokens = array("I", ids[start * self.size : len(hashes) * self.size])
        parent = hashes[start - 1] if start else None
        return BlocksStored(hashes[start:], parent, tokens, self.size, tier, 0, self.adapter, None, None)

    def removed(self, ids: Sequence[int], start: int = 0, tier: Tier = Tier.GPU) -> BlocksRemoved:
        return BlocksRemoved(self.hashes(ids)[start:][::-1], tier, 0)  # as engines do: a chain from its end

    def cleared(self) -> BlocksCleared:
        return BlocksCleared()

    def restart(self) -> None:
        """Act as a new process: sequences from 0 again, while the clock goes on."""
        self.seq = -1

    def hashes(self, ids: Sequence[int]) -> list[EngineHash]:
        """Hashes of all full blocks of `ids`, specific to this engine: no other could compute them."""
        ends = range(self.size, len(ids) + 1, self.size)
        return [EngineHash(hash((self.size, self.adapter, *ids[:end])) & 0xFFFF_FFFF_FFFF) for end in ends]
