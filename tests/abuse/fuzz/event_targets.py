"""Fuzz targets that read binary data of engines and of our own disk: event messages and index snapshots."""

from __future__ import annotations

from router.backends.vllm import kv_events
from router.backends.vllm.kv_events import LargeBatch, MalformedMessage, ReplayEnd, decode, decode_replay
from router.clock import ManualClock
from router.fleet.engine_limits import OverLimit
from router.kvcache.events import EventBatch, TargetId
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer
from router.kvcache.snapshot_format import UnusableSnapshot, from_bytes
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from tests.fakes.caches import RING, prompt_of

TARGET = TargetId("engine/0")
PROMPT = prompt_of(range(64), 1, 4, 16)


class _Observer:
    """The pool's client gets these events too."""

    def on_stored(self, model: str, event: object) -> None:
        pass

    def on_pooled(self, model: str, event: object) -> None:
        pass


def _indexer() -> KvIndexer:
    clock = ManualClock(1000.0, wall=5000.0)
    indexer = KvIndexer(BlockIndex(RING, 1000), SpeculativeBlocks(5.0), ApproximateBlocks(1000, 60.0), clock)
    indexer.observer = _Observer()
    indexer.join(TARGET, "m", stream=True, replayable=True)
    indexer.on_connected(TARGET)
    return indexer


def apply_events(data: bytes) -> None:
    """Messages of any content are applied, counted as malformed, or skipped; the index can be asked after each.

    The input is a list of messages, each with its length in two bytes: a flag byte, the sequence number, the payload.
    """
    indexer, at = _indexer(), 0
    while at + 2 <= len(data):
        length = int.from_bytes(data[at : at + 2], "big")
        message = data[at + 2 : at + 2 + length]
        at += 2 + length
        flags, frames = message[:1] or b"\0", [b"", message[1:9], message[9:]]
        _apply(indexer, flags[0], frames)
        estimates = indexer.estimate_overlaps(PROMPT, {TARGET: indexer.block_tokens(TARGET)}, frozenset())
        for estimate in estimates.values():
            assert estimate.overlap is None or 0 <= estimate.overlap.expected_tokens <= 64
        assert (indexer.held_tokens(TARGET, indexer.block_tokens(TARGET), True) or 0) >= 0
    indexer.snapshot(TARGET)


def _apply(indexer: KvIndexer, flags: int, frames: list[bytes]) -> None:
    replayed, ends, host_cpu, reconnects = flags & 1, flags & 2, bool(flags & 4), flags & 8
    batch = (decode_replay if replayed else decode)(frames, host_cpu=host_cpu)
    if isinstance(batch, EventBatch):
        _compare(batch, frames, host_cpu)
    if isinstance(batch, (LargeBatch, OverLimit)):
        raise AssertionError("messages of this size are decoded at once")
    if isinstance(batch, MalformedMessage):
        indexer.on_malformed(TARGET, batch.reason)
    elif isinstance(batch, ReplayEnd):
        indexer.on_replay_end(TARGET, complete=True)
    elif replayed:
        indexer.on_replayed(TARGET, batch)
    else:
        indexer.on_batch(TARGET, batch)
    if ends:
        indexer.on_replay_end(TARGET, complete=bool(flags & 16))
    if reconnects:
        indexer.on_connected(TARGET)
    while indexer.resume(TARGET):
        pass


def _compare(batch: EventBatch, frames: list[bytes], host_cpu: bool) -> None:
    """Decoded as a large message is, it is the same; where it has no plain beginning, or unusual types, malformed."""
    found: object = kv_events._large(frames[1], frames[2], host_cpu)
    while isinstance(found, LargeBatch):
        found = found.step() or found
    assert found == batch or isinstance(found, MalformedMessage), (found, batch)


def read_snapshot(data: bytes) -> None:
    """Any file is a snapshot that loads, or a reason why not."""
    saved = from_bytes(data)
    if isinstance(saved, UnusableSnapshot):
        assert saved.reason
