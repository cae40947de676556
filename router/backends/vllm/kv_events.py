"""vLLM's KV event messages: decodes ZeroMQ frames into batches of domain events (`protocol.md` 1, 2).

A message is `[topic][sequence, u64 big endian][msgpack [ts, events, rank]]`; `kv_event.py` reads its events.

The events of one engine step are decoded in one call, which is fastest. A message is as large as an engine makes
it, so one of more than `PLAIN_BYTES` becomes a `LargeBatch`: its events are located in one pass that builds no
objects, and then decoded a few at a time, a large event field by field. So no message blocks the loop for longer
than a request may wait. This module does not depend on targets, order or keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, Literal, NamedTuple

from msgspec import Raw

from router.backends.vllm.kv_event import EXTRA_BYTES, FIELDS, PIECE_BLOCKS, EventReader
from router.backends.vllm.kv_event_format import (
    find_events,
    unpack,
    unpack_array,
    unpack_event_map,
    unpack_hashes,
    unpack_ints,
    unpack_map,
    unpack_maps,
)
from router.fleet.engine_limits import OverLimit
from router.kvcache.events import EventBatch

PLAIN_BYTES = 64 * 1024  # a step of 8,000 tokens; 20 ms for the worst content
MESSAGE_EVENTS = 1 << 17  # a step that loads a prompt of a million tokens removes a block of 16 per event: 62,500
EVENT_FIELDS = 64
EVENT_BLOCKS = 1 << 17
EVENT_TOKENS = 1 << 20  # decoded in one call: 35 ms
STEP_EVENTS = 512  # decoded at once: about a millisecond

END_OF_REPLAY = b"\xff" * 8  # sequence -1
MILLISECONDS_FROM = 1e11  # in seconds, the year 5138: Mooncake's master sends milliseconds

_UNREADABLE = (ValueError, RecursionError)  # msgspec's own errors, bad UTF-8, absurd nesting


class MalformedMessage(NamedTuple):
    """A message that cannot be decoded."""

    reason: Literal["frames", "sequence", "payload", "timestamp"]


class ReplayEnd(NamedTuple):
    """The end marker of a replay."""


def decode(
    frames: Sequence[bytes], *, host_cpu: bool = False
) -> EventBatch | LargeBatch | MalformedMessage | OverLimit:
    """Decode one message of the event stream."""
    if len(frames) != 3:
        return MalformedMessage("frames")
    return _batch(frames[1], frames[2], host_cpu)


def decode_replay(
    frames: Sequence[bytes], *, host_cpu: bool = False
) -> EventBatch | LargeBatch | ReplayEnd | MalformedMessage | OverLimit:
    """Decode one replay answer, as a DEALER receives it, from its end: since 0.26 a topic precedes the frames."""
    if not 3 <= len(frames) <= 4:
        return MalformedMessage("frames")
    if frames[-2] == END_OF_REPLAY:
        return ReplayEnd()
    return _batch(frames[-2], frames[-1], host_cpu)


def _batch(sequence: bytes, payload: bytes, host_cpu: bool) -> EventBatch | LargeBatch | MalformedMessage | OverLimit:
    if len(sequence) != 8:
        return MalformedMessage("sequence")
    if len(payload) > PLAIN_BYTES:
        return _large(sequence, payload, host_cpu)
    try:
        message = unpack_maps(payload)
    except _UNREADABLE:
        return _batch_of_any(sequence, payload, host_cpu)
    batch = _begin(sequence, message.stamp, message.rank, len(payload))
    if not isinstance(batch, MalformedMessage):
        reader = EventReader(batch, host_cpu)
        for fields in message.events:
            reader.read_fields(fields)
    return batch


def _batch_of_any(sequence: bytes, payload: bytes, host_cpu: bool) -> EventBatch | MalformedMessage:
    """Decode a message that is malformed, or has events that are not maps, as before vLLM 0.24."""
    try:
        content = unpack(payload)
    except _UNREADABLE:
        return MalformedMessage("payload")
    if type(content) is not list or len(content) < 2 or type(content[1]) is not list:
        return MalformedMessage("payload")
    batch = _begin(sequence, content[0], content[2] if len(content) > 2 else None, len(payload))
    if isinstance(batch, MalformedMessage):
        return batch
    reader = EventReader(batch, host_cpu)
    for raw in content[1]:
        reader.read(raw)
    return batch


def _begin(sequence: bytes, stamp: Any, rank: Any, size_bytes: int) -> EventBatch | MalformedMessage:
    """Return the batch without its events."""
    if type(stamp) not in (int, float) or not isfinite(stamp):
        return MalformedMessage("timestamp")
    wall_s = stamp / 1000 if stamp > MILLISECONDS_FROM else float(stamp)
    rank = rank if type(rank) is int else None
    return EventBatch(int.from_bytes(sequence, "big"), wall_s, rank, [], {}, size_bytes)


def _large(sequence: bytes, payload: bytes, host_cpu: bool) -> LargeBatch | MalformedMessage | OverLimit:
    count = _count_events(payload)
    if count is None:
        return MalformedMessage("payload")
    if count > MESSAGE_EVENTS:
        return OverLimit("message", f"a message of more than {MESSAGE_EVENTS:,} KV events")
    try:
        message = find_events(payload)
    except _UNREADABLE:
        return MalformedMessage("payload")
    batch = _begin(sequence, message.stamp, message.rank, len(payload))
    return batch if isinstance(batch, MalformedMessage) else LargeBatch(batch, message.events, host_cpu)


def _count_events(payload: bytes) -> int | None:
    """Return the number of events that a message declares, without decoding it; None if it is no valid message."""
    widths = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
    if payload[0] & 0xF0 != 0x90 or payload[0] < 0x92:
        return None
    stamp = payload[1]
    return _length(payload, ARRAY, 2 + (0 if stamp < 0x80 else widths.get(stamp, len(payload))))


ARRAY, MAP = (0x90, 0xDC), (0x80, 0xDE)  # heads: with four bits of length; with 16 bits, and the next with 32


def _length(packed: bytes | Raw, kind: tuple[int, int] = ARRAY, at: int = 0) -> int | None:
    """Return the length of the msgpack array or map that begins at `at`; None if none begins there."""
    head = bytes(memoryview(packed)[at : at + 5])
    small, large = kind
    match head[0] if head else None:
        case int(first) if small <= first < small + 16:
            return first - small
        case int(first) if first == large:
            return int.from_bytes(head[1:3], "big")
        case int(first) if first == large + 1:
            return int.from_bytes(head[1:5], "big")
    return None


class LargeBatch:
    """A large message that is being decoded: call `step` until it returns something other than None."""

    def __init__(self, batch: EventBatch, events: list[Raw], host_cpu: bool) -> None:
        self._batch = batch
        self._reader = EventReader(batch, host_cpu)
        self._events = iter(events)
        self._pieces: Iterator[Any] = iter(())  # of the current event, if it is large

    def step(self) -> EventBatch | OverLimit | None:
        """Decode some more events. Return the batch when all are decoded, the limit that the message exceeds, or
        None: call again.
        """
        for _ in range(STEP_EVENTS):
            try:
                if (piece := next(self._pieces, None)) is not None:
                    self._reader.read(piece)
                    return None
                if (raw := next(self._events, None)) is None:
                    return self._batch
                if len(memoryview(raw)) <= PLAIN_BYTES:
                    self._reader.read(_unpack_event(raw))
                else:
                    self._pieces = _cut_fields(raw)
            except _UNREADABLE:
                self._reader.skip("broken")
            except _TooMuch as beyond:
                return OverLimit("message", str(beyond))
        return None


def _unpack_event(raw: Raw) -> Any:
    """Decode an event as `_batch` does, so that an event is read alike in a message of any size.

    Raises ValueError or RecursionError for an unreadable event.
    """
    try:
        return unpack_event_map(raw)
    except _UNREADABLE:
        return unpack(raw)


class _TooMuch(Exception):
    """An event has more fields, tokens or blocks than any prompt's event."""


def _cut_fields(raw: Raw) -> Iterator[dict[str, Any]]:
    """Yield the fields of a large event as the fields of several events with about `PIECE_BLOCKS` blocks each.

    Raises _TooMuch for an event larger than any prompt's.
    """
    fields = _large_fields(raw)
    hashes, tokens, extras = fields.get("block_hashes"), fields.get("token_ids"), fields.pop("extra_keys", None)
    if not hashes or (tokens and len(tokens) % len(hashes)):
        yield fields
        return
    width = len(tokens) // len(hashes) if tokens else 0
    for start in range(0, len(hashes), PIECE_BLOCKS):
        end = start + PIECE_BLOCKS
        piece = fields | {"block_hashes": hashes[start:end]}
        if start:
            piece["parent_block_hash"] = hashes[start - 1]
        if tokens:
            piece["token_ids"] = tokens[start * width : end * width]
        if extras is not None:
            piece["extra_keys"] = [_small(extra) for extra in extras[start:end]]
        yield piece


def _large_fields(raw: Raw) -> dict[str, Any]:
    """Return the fields of an event, with its extra keys undecoded."""
    count = _length(raw)
    _check(count or _length(raw, MAP) or 0, EVENT_FIELDS, "fields")
    if count is None:
        members = unpack_map(raw)
    else:
        kind, *rest = unpack_array(raw)
        tag = _small(kind)
        names = FIELDS.get(tag, ()) if isinstance(tag, str) else ()
        members = {"type": kind} | dict(zip(names, rest, strict=False))
    fields: dict[str, Any] = {}
    for name, value in members.items():
        count = _length(value)
        match name:
            case "token_ids" if count is not None:
                _check(count, EVENT_TOKENS, "tokens")
                fields[name] = unpack_ints(value)
            case "block_hashes" if count is not None:
                _check(count, EVENT_BLOCKS, "blocks")
                fields[name] = unpack_hashes(value)
            case "extra_keys" if count is not None:
                _check(count, EVENT_BLOCKS, "blocks")
                fields[name] = unpack_array(value)
            case _:
                fields[name] = _small(value)
    return fields


def _check(count: int, most: int, what: str) -> None:
    if count > most:
        raise _TooMuch(f"a KV event with more than {most:,} {what}")


def _small(raw: Raw) -> Any:
    """Return a value of up to `EXTRA_BYTES`; for a larger one `...`, which is no value of any field."""
    return unpack(raw) if len(memoryview(raw)) <= EXTRA_BYTES else ...
