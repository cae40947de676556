"""One rank's event publisher: a real ZeroMQ PUB socket, and a ROUTER that replays what was published.

Frames of a live message: `[topic][sequence, 8 bytes big-endian][payload]`. A replay request is `[empty][first
sequence]` from a DEALER; the answer is one message per kept batch from there on, then an end marker whose sequence is
-1. Losses, doubles and disorder are put in here, behind the replay buffer, where a network would put them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import zmq
import zmq.asyncio

from router.clock import Clock
from router.kvcache.events import Event
from router.testbed.emulator import kv_event_encoding
from router.testbed.emulator.options import EngineFaults, EngineOptions
from router.testbed.rng import Rng

END = (-1).to_bytes(8, "big", signed=True)
Frames = list[bytes]


class KvPublisher:
    """Binds at once. `publish` never blocks; `serve_replays` runs until cancelled; `close` gives the ports back."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        options: EngineOptions,
        rank: int,
        clock: Clock,
        faults: Callable[[], EngineFaults],
    ) -> None:
        self.rank = rank
        self._options = options
        self._clock = clock
        self._faults = faults
        self._dice = Rng(options.seed * 1_000_003 + rank)
        self._topic = options.topic.encode()
        self._adapter_ids = {name: number for number, name in enumerate(options.adapters(), start=1)}
        self._sequence = 0
        self._kept: deque[tuple[int, bytes]] = deque(maxlen=options.replay_steps)
        self._held: Frames | None = None  # a message that is to be overtaken by the next
        self._live: zmq.Socket[bytes] = context.socket(zmq.PUB)
        self._replay = zmq.asyncio.Socket(context, zmq.ROUTER)
        self.endpoint = self._bind(self._live, options.events_port)
        self.replay_endpoint = self._bind(self._replay, options.replay_port)

    def publish(self, events: Sequence[Event]) -> None:
        """Give these events the next sequence number, keep them for replays, and send them as the faults allow."""
        payload = kv_event_encoding.encode_batch(
            events,
            self._clock.wall(),
            self.rank,
            form=self._options.events_format,
            adapter_ids=self._adapter_ids,
        )
        self._kept.append((self._sequence, payload))
        frames = [self._topic, self._sequence.to_bytes(8, "big"), payload]
        self._sequence += 1
        for message in self._disturbed(frames):
            self._send(message)

    def source(self) -> dict[str, object]:
        """This rank's entry of `GET /kv_event_sources`."""
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
        while True:
            request = await self._replay.recv_multipart()
            if len(request) != 3 or len(request[2]) != 8:
                continue  # as vLLM: not answered
            asker, start = request[0], int.from_bytes(request[2], "big")
            topic = [self._topic] if self._options.replay_format == "topic" else []
            for sequence, payload in list(self._kept):
                if sequence >= start:
                    await self._replay.send_multipart([asker, b"", *topic, sequence.to_bytes(8, "big"), payload])
            await self._replay.send_multipart([asker, b"", *([b""] if topic else []), END, b""])

    def restart(self) -> None:
        """As a new process would: sequences from 0, nothing to replay."""
        self._sequence = 0
        self._kept.clear()
        self._held = None

    def close(self) -> None:
        self._live.close(linger=0)
        self._replay.close(linger=0)

    def _disturbed(self, frames: Frames) -> list[Frames]:
        """What goes out now, in this order."""
        faults, dice = self._faults(), self._dice
        if dice.happens(faults.drop_events):
            return []
        if self._held is None and dice.happens(faults.reorder_events):
            self._held = frames
            return []
        out = [frames, frames] if dice.happens(faults.duplicate_events) else [frames]
        if self._held is not None:
            out.append(self._held)
            self._held = None
        return out

    def _send(self, frames: Frames) -> None:
        delay_s = self._faults().delay_events_ms / 1000
        if delay_s:
            asyncio.get_running_loop().call_later(delay_s, self._send_now, frames)
        else:
            self._send_now(frames)

    def _send_now(self, frames: Frames) -> None:
        if not self._live.closed:
            self._live.send_multipart(frames)

    def _bind(self, socket: zmq.Socket[Any], port: int) -> str:
        """Binds, and says where as the engine would: a wildcard host stays `*`."""
        host = "*" if self._options.host in ("0.0.0.0", "::") else self._options.host
        offset = self.rank if port else 0
        socket.bind(f"tcp://{host}:{port + offset}")
        bound: bytes = socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        return f"tcp://{host}:{bound.rpartition(b':')[2].decode()}"
