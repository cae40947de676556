"""Subscribes to the KV event stream of every rank: subscribe first, then replay, then live (`protocol.md` 1.1, 2.9).

    SUB  --- message ----> decode ---> handler.on_batch ---------+
    its monitor: connected ----------> handler.on_connected -----+--> sequence number to replay from, or None
    DEALER, one per replay -> decode -> handler.on_replayed      |
            end marker or timeout ----> handler.on_replay_end ---+

The handler decides what batches mean, what is missing and when to replay; this module only handles sockets. A replay
has its own socket, closed with it: the engine's ROUTER silently drops what a slow reader does not take, so the receive
queue is unlimited, and whatever is missing nevertheless is requested again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from router.backends.feeds.zmq_reader import ZmqReader, ZmqSocket
from router.backends.vllm.kv_events import MalformedMessage, ReplayEnd, decode, decode_replay
from router.clock import Clock
from router.fleet.engine_facts import EventEndpoint
from router.kvcache.events import EventBatch, TargetId
from router.tasks import Tasks

log = logging.getLogger("warmroute.feeds.kv_events")

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]

SOCKETS = 16_384  # two per rank, one per running replay
SUB_OPTIONS = {
    zmq.RCVHWM: 100_000,  # as the engine's own; dropped messages show as a gap
    zmq.MAXMSGSIZE: 64 * 1024 * 1024,
    zmq.RECONNECT_IVL: 100,  # ms, growing up to:
    zmq.RECONNECT_IVL_MAX: 2_000,
    zmq.HEARTBEAT_IVL: 5_000,  # a host that vanished closes no connection
    zmq.HEARTBEAT_TIMEOUT: 15_000,
    zmq.LINGER: 0,
}
REPLAY_OPTIONS = {zmq.RCVHWM: 0, zmq.MAXMSGSIZE: 64 * 1024 * 1024, zmq.RECONNECT_IVL: 100, zmq.LINGER: 0}


class EventHandler(Protocol):
    """Receives events. A returned int requests a replay from that sequence number; a target has one at a time."""

    def on_connected(self, target: TargetId) -> int | None:
        """Handle a connect or reconnect: the process behind may be another."""

    def on_batch(self, target: TargetId, batch: EventBatch) -> int | None:
        """Handle a live batch."""

    def on_replayed(self, target: TargetId, batch: EventBatch) -> None:
        """Handle a batch of the running replay."""

    def on_replay_end(self, target: TargetId, complete: bool) -> int | None:
        """Handle the end of a replay; `complete`: with the engine's end marker, and in time."""

    def on_malformed(self, target: TargetId, reason: str) -> None:
        """Count a message that could not be decoded."""


class KvEventSubscriber:
    """The event streams of all targets, on the event loop that runs at the first `subscribe`."""

    def __init__(self, handler: EventHandler, tasks: Tasks, clock: Clock, replay_timeout_s: float) -> None:
        self._handler = handler
        self._replay_timeout_s = replay_timeout_s
        self._context = zmq.Context(io_threads=1)
        self._context.set(zmq.MAX_SOCKETS, SOCKETS)
        self._tasks = tasks
        self._reader = ZmqReader(clock)
        self._reader_task: asyncio.Task[None] | None = None
        self._streams: dict[TargetId, _Stream] = {}

    def subscribe(self, target: TargetId, source: EventEndpoint, *, host_cpu: bool = False) -> None:
        """Subscribe to `target` at `source`, replacing an earlier subscription (`host_cpu`: see `decode`)."""
        self.unsubscribe(target)
        if self._reader_task is None:
            self._reader_task = self._tasks.supervise("pump", self._reader.run)
        try:
            stream = self._streams[target] = _Stream(
                target, source, host_cpu, self._context, self._reader, self._handler, self._replay_timeout_s
            )
            stream.connect()
        except zmq.ZMQError as error:
            log.error("%s: cannot subscribe to KV events at %s: %s", target, source.endpoint, error)
            self._handler.on_malformed(target, "endpoint")
            self.unsubscribe(target)

    def unsubscribe(self, target: TargetId) -> None:
        """Stop receiving events of `target`; a no-op without a subscription."""
        if (stream := self._streams.pop(target, None)) is not None:
            stream.close()

    async def close(self) -> None:
        """Close all subscriptions and sockets."""
        for target in list(self._streams):
            self.unsubscribe(target)
        if self._reader_task is not None:
            self._reader_task.cancel()
            await asyncio.gather(self._reader_task, return_exceptions=True)
            self._reader_task = None
        self._context.destroy(linger=0)


class _Stream:
    """The subscription of one rank."""

    def __init__(
        self,
        target: TargetId,
        source: EventEndpoint,
        host_cpu: bool,
        context: Context,
        reader: ZmqReader,
        handler: EventHandler,
        timeout_s: float,
    ) -> None:
        self._target = target
        self._source = source
        self._host_cpu = host_cpu
        self._context = context
        self._reader = reader
        self._handler = handler
        self._replay_timeout_s = timeout_s
        self._replay: _Replay | None = None
        sub = _socket(context, zmq.SUB, SUB_OPTIONS)
        self._monitor = ZmqSocket(reader, sub.get_monitor_socket(zmq.Event.HANDSHAKE_SUCCEEDED), self._take_monitored)
        self._sub = ZmqSocket(reader, sub, self._take)

    def connect(self) -> None:
        """Connect, with the monitor in place: otherwise the first connection could be missed."""
        self._sub.socket.subscribe(self._source.topic)
        self._sub.socket.connect(self._source.endpoint)

    def close(self) -> None:
        self._sub.socket.disable_monitor()
        self._monitor.close()
        self._sub.close()
        if self._replay is not None:
            self._replay.close()

    def _take_monitored(self, frames: list[bytes]) -> None:
        if parse_monitor_message(frames)["event"] == zmq.Event.HANDSHAKE_SUCCEEDED:
            self._start_replay(self._handler.on_connected(self._target))

    def _take(self, frames: list[bytes]) -> None:
        batch = decode(frames, host_cpu=self._host_cpu)
        if isinstance(batch, MalformedMessage):
            self._handler.on_malformed(self._target, batch.reason)
        else:
            self._start_replay(self._handler.on_batch(self._target, batch))

    def _take_replayed(self, frames: list[bytes]) -> None:
        batch = decode_replay(frames, host_cpu=self._host_cpu)
        if isinstance(batch, ReplayEnd):
            self._end_replay(True)
        elif isinstance(batch, MalformedMessage):
            self._handler.on_malformed(self._target, batch.reason)
        else:
            self._handler.on_replayed(self._target, batch)

    def _start_replay(self, start_seq: int | None) -> None:
        if start_seq is None or self._sub.closed:  # the handler may have unsubscribed during its call
            return
        if self._replay is not None:
            self._replay.close()
        self._replay = _Replay(self._replay_timeout_s, self._take_replayed, self._end_replay)
        try:
            self._replay.start(self._context, self._reader, self._source.replay_endpoint, start_seq)
        except zmq.ZMQError as error:  # the timeout ends the replay
            log.error(
                "%s: cannot request a KV event replay at %s: %s", self._target, self._source.replay_endpoint, error
            )

    def _end_replay(self, complete: bool) -> None:
        if self._replay is not None:
            self._replay.close()
            self._replay = None
        self._start_replay(self._handler.on_replay_end(self._target, complete))


class _Replay:
    """One request for past batches. `end` is called with False if it takes longer than `timeout_s`."""

    def __init__(self, timeout_s: float, take: Callable[[list[bytes]], None], end: Callable[[bool], None]) -> None:
        self._take = take
        self._timer = asyncio.get_running_loop().call_later(timeout_s, end, False)
        self._reader: ZmqSocket | None = None

    def start(self, context: Context, reader: ZmqReader, endpoint: str | None, start_seq: int) -> None:
        """Send the request; without an endpoint nothing is sent and the timeout ends the replay."""
        if endpoint is not None:
            self._reader = ZmqSocket(reader, _socket(context, zmq.DEALER, REPLAY_OPTIONS), self._take)
            self._reader.socket.connect(endpoint)
            self._reader.socket.send_multipart([b"", start_seq.to_bytes(8, "big")], zmq.NOBLOCK)
            self._reader.wake()

    def close(self) -> None:
        self._timer.cancel()
        if self._reader is not None:
            self._reader.close()


def _socket(context: Context, kind: int, options: dict[zmq.SocketOption, int]) -> Socket:
    """Return a socket with `options`. Raises zmq.ZMQError when out of file descriptors."""
    socket = context.socket(kind)
    for option, value in options.items():
        socket.setsockopt(option, value)
    return socket
