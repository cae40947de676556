"""One rank's event publisher: a real ZeroMQ PUB socket, and a ROUTER socket that replays what was published.

Frames of a live message: `[topic][sequence, 8 bytes big-endian][payload]`. A replay request is
`[empty][first sequence]` from a DEALER; the answer is one message per stored batch from this sequence on, then an
end marker with sequence -1. Losses, duplicates and reordering are injected after the replay buffer, where a network
would cause them.

A payload is `[ts, events, rank]` in msgpack, the inverse of `backends/vllm/kv_events.py`. Since vLLM 0.24 an event
is a map that omits fields at their default; before, it was an array with the tag first and every field in its
place. Both are encoded from the same table of fields, so they carry the same facts. Source: vLLM
distributed/kv_events.py, checked against recordings of 0.32.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
import zmq
import zmq.asyncio

from router.clock import Clock
from router.kvcache.events import BlocksCleared, BlocksPooled, BlocksRemoved, BlocksStored, Event, TailsStored
from router.lab.emulator.options import EngineFaults, EngineOptions
from router.lab.rng import Rng

END = (-1).to_bytes(8, "big", signed=True)
Frames = list[bytes]
Format = Literal["map", "array"]
Fields = dict[str, Any]

MEDIUM = "GPU"
POOL_MEDIUM = "cpu"
KIND = "full_attention"
NEWEST = (1 << 31, 0)
SINCE = {  # vLLM's first version with a field
    "medium": (0, 11),
    "lora_name": (0, 16),
    "extra_keys": (0, 19),
    "group_idx": (0, 20),
    "kv_cache_spec_kind": (0, 22),
    "kv_cache_spec_sliding_window": (0, 22),
}
ALWAYS = frozenset(
    ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name")
)  # fields that a map has even when nil; others are omitted

_encode = msgspec.msgpack.Encoder().encode


class AdapterNumbers(dict[str, int]):
    """The engine's own numbers for adapters, from 1, in the order in which they were first used."""

    def __missing__(self, name: str) -> int:
        number = self[name] = len(self) + 1
        return number


class EventSockets:
    """Makes the sockets of an engine's publishers. Call `close` when all of them are closed."""

    def __init__(self) -> None:
        self._context = zmq.Context()

    def open_live(self) -> zmq.Socket[bytes]:
        return self._context.socket(zmq.PUB)

    def open_replay(self) -> zmq.asyncio.Socket:
        return zmq.asyncio.Socket(self._context, zmq.ROUTER)

    def close(self) -> None:
        self._context.term()


class KvPublisher:
    """Event publisher that binds its sockets when created; `close` frees the ports. `publish` never blocks."""

    def __init__(
        self,
        sockets: EventSockets,
        options: EngineOptions,
        rank: int,
        clock: Clock,
        faults: Callable[[], EngineFaults],
    ) -> None:
        self.rank = rank
        self._options = options
        self._clock = clock
        self._faults = faults
        self._rng = Rng(options.seed * 1_000_003 + rank)
        self._topic = options.topic.encode()
        self._adapter_ids = AdapterNumbers((name, i) for i, name in enumerate(options.adapters(), start=1))
        self._sequence = 0
        self._replay_buffer: deque[tuple[int, bytes]] = deque(maxlen=options.replay_steps)
        self._delayed: Frames | None = None  # a message that the next one will overtake
        self._live = sockets.open_live()
        self._replay = sockets.open_replay()
        self.endpoint = self._open_live(options.events_endpoint)
        self.replay_endpoint = self._bind(self._replay, options.replay_port) if options.replay else None

    def publish(self, events: Sequence[Event]) -> None:
        """Store the events for replays under the next sequence number, and send them as the faults allow."""
        faults = self._faults()
        if faults.hide_removals:
            events = [event for event in events if not isinstance(event, BlocksRemoved | BlocksCleared)]
        sent_at = self._clock.wall() + faults.clock_offset_s
        payload = encode_batch(
            events,
            sent_at,
            self.rank,
            form=self._options.events_format,
            adapter_ids=self._adapter_ids,
            version=self._options.release,
        )
        self._replay_buffer.append((self._sequence, payload))
        frames = [self._topic, self._sequence.to_bytes(8, "big"), payload]
        self._sequence += 1
        for message in self._apply_faults(frames):
            self._send(message)

    def source(self) -> dict[str, object]:
        """Return this rank's entry in `GET /kv_event_sources`."""
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.endpoint,
            "replay_endpoint": self.replay_endpoint,
            "buffer_steps": self._options.replay_steps,
            "hwm": 100_000,
            "max_queue_size": 100_000,
            "topic": self._options.topic,
        }

    async def serve_replays(self) -> None:
        """Answer replay requests until cancelled, ignoring malformed ones as vLLM does."""
        while True:
            request = await self._replay.recv_multipart()
            if self._faults().silent_replays or len(request) != 3 or len(request[2]) != 8:
                continue
            peer, start = request[0], int.from_bytes(request[2], "big")
            topic = [self._topic] if self._options.replay_format == "topic" else []
            for sequence, payload in list(self._replay_buffer):
                if sequence >= start:
                    await self._replay.send_multipart([peer, b"", *topic, sequence.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([peer, b"", *([b""] if topic else []), END, b""])

    def restart(self) -> None:
        """Reset as a restarted process does: sequences from 0, no batches to replay."""
        self._sequence = 0
        self._replay_buffer.clear()
        self._delayed = None

    def close(self) -> None:
        """Close both sockets without waiting for unsent messages."""
        self._live.close(linger=0)
        self._replay.close(linger=0)

    def _apply_faults(self, frames: Frames) -> list[Frames]:
        """Return the messages to send now, in order."""
        faults, rng = self._faults(), self._rng
        if rng.happens(faults.drop_events):
            return []
        if self._delayed is None and rng.happens(faults.reorder_events):
            self._delayed = frames
            return []
        messages = [frames, frames] if rng.happens(faults.duplicate_events) else [frames]
        if self._delayed is not None:
            messages.append(self._delayed)
            self._delayed = None
        return messages

    def _send(self, frames: Frames) -> None:
        delay_s = self._faults().delay_events_ms / 1000
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self._send_now, frames)
        else:
            self._send_now(frames)

    def _send_now(self, frames: Frames) -> None:
        if not self._live.closed:
            self._live.send_multipart(frames)

    def _open_live(self, endpoint: str | None) -> str:
        """Bind, or like vLLM connect to an endpoint without a wildcard (`protocol.md` 1.1)."""
        if endpoint is None or "*" in endpoint:
            port = 0 if endpoint is None else int(endpoint.rpartition(":")[2])
            return self._bind(self._live, port or self._options.events_port)
        self._live.connect(endpoint)
        return endpoint

    def _bind(self, socket: zmq.Socket[Any], port: int) -> str:
        """Bind, and return the endpoint as the engine reports it: a wildcard host stays `*`."""
        host = "*" if self._options.host in ("0.0.0.0", "::") else self._options.host
        offset = self.rank if port else 0
        socket.bind(f"tcp://{host}:{port + offset}")
        bound: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        return f"tcp://{host}:{bound.rpartition(b':')[2].decode()}"


def encode_batch(
    events: Sequence[Event],
    wall_s: float,
    rank: int,
    *,
    form: Format,
    adapter_ids: Mapping[str, int],
    version: tuple[int, int] = NEWEST,
) -> bytes:
    """Encode one message's payload. `adapter_ids` are the engine's own numbers for its LoRA adapters. Fields that
    vLLM does not yet have in `version` are omitted.
    """
    format_event = _FORMATS[form]
    unknown = {name for name, since in SINCE.items() if version < since}
    encoded = []
    for place, event in enumerate(events):
        tag, fields = _fields(event, adapter_ids)
        if isinstance(event, TailsStored):
            fields |= _step_fields(event, events[place:])
        encoded.append(format_event(tag, {name: fields[name] for name in fields if name not in unknown}))
    return _encode([wall_s, encoded, rank])


def _fields(event: Event, adapter_ids: Mapping[str, int]) -> tuple[str, Fields]:
    """Return tag and fields of an event, in the order of 0.23's array format."""
    match event:
        case BlocksStored():
            return "BlockStored", {
                "block_hashes": event.hashes,
                "parent_block_hash": event.parent,
                "token_ids": list(event.token_ids),
                "block_size": event.block_tokens,
                "lora_id": None if event.adapter is None else adapter_ids[event.adapter],
                "medium": MEDIUM,
                "lora_name": event.adapter,
                "extra_keys": _extra_keys(event),
                "group_idx": event.group,
                "kv_cache_spec_kind": KIND,
                "kv_cache_spec_sliding_window": None,
            }
        case TailsStored():
            return "BlockStored", _tail_fields(event)
        case BlocksRemoved():
            return "BlockRemoved", {"block_hashes": event.hashes, "medium": MEDIUM, "group_idx": event.group}
        case BlocksPooled():  # as MooncakeStoreConnector publishes it: no extra keys, no kind
            return "BlockStored", {
                "block_hashes": event.hashes,
                "parent_block_hash": event.parent,
                "token_ids": list(event.token_ids),
                "block_size": event.block_tokens,
                "lora_id": None,
                "medium": POOL_MEDIUM,
                "lora_name": None,
                "extra_keys": None,
                "group_idx": 0,
            }
        case BlocksCleared():
            return "AllBlocksCleared", {}


def _tail_fields(event: TailsStored) -> Fields:
    return {
        "block_hashes": event.hashes,
        "parent_block_hash": None,
        "token_ids": [],
        "block_size": event.block_tokens,
        "lora_id": None,
        "medium": MEDIUM,
        "lora_name": None,
        "extra_keys": None,
        "group_idx": event.group,
        "kv_cache_spec_kind": "sliding_window" if event.leading else "mamba",
        "kv_cache_spec_sliding_window": event.need * event.block_tokens if event.leading else None,
    }


def _step_fields(tails: TailsStored, following: Sequence[Event]) -> Fields:
    """Return the fields of an event of tails that describe its whole step: those of full attention, announced next."""
    step = next((event for event in following if isinstance(event, BlocksStored)), None)
    if step is None:
        return {}
    keys = [[step.adapter]] if step.adapter is not None else [None]
    return {
        "parent_block_hash": step.parent,
        "token_ids": list(step.token_ids),
        "lora_name": step.adapter,
        "extra_keys": keys * len(tails.hashes) if tails.hashes else None,
    }


def _extra_keys(event: BlocksStored) -> list[list[str] | None]:
    """Return the extra keys by block: the adapter's name on each, the salt on the first of the chain."""
    each = [event.adapter] if event.adapter is not None else []
    keys: list[list[str] | None] = [each or None for _ in event.hashes]
    if event.salt is not None and keys:
        keys[0] = [*each, event.salt]
    return keys


def _as_map(tag: str, fields: Fields) -> Fields:
    return {"type": tag} | {name: value for name, value in fields.items() if value is not None or name in ALWAYS}


def _as_array(tag: str, fields: Fields) -> list[Any]:
    return [tag, *fields.values()]


_FORMATS: dict[Format, Callable[[str, Fields], Any]] = {"map": _as_map, "array": _as_array}
