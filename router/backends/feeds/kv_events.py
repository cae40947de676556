"""Subscribes to the KV event stream of every rank: subscribe first, then replay, then live (`protocol.md` 1.1,
2.9).

    SUB  --- message ----> decode ---> handler.on_batch ---------+
         --- connected --------------> handler.on_connected -----+--> sequence number to replay from, or None
    DEALER, one per replay -> decode -> handler.on_replayed -----+
            end marker or timeout ----> handler.on_replay_end ---+

The handler decides what batches mean, what is missing and when to replay; this module only handles sockets. A
replay has its own socket, closed with the replay: the engine's ROUTER silently drops what a slow reader does not
take, and whatever is missing is requested again. Data from an engine is read no faster than it is applied, a piece
at a time (`stream_reader.py`), and is bounded (`zmtp.py`, `backends/vllm/kv_events.py`); beyond a bound `limits` is
notified.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol
from weakref import WeakValueDictionary

from router.backends.feeds.stream_reader import StreamReader
from router.backends.feeds.zmtp import Intake, ZmtpCallbacks, ZmtpSocket, subscription
from router.backends.vllm.kv_events import LargeBatch, MalformedMessage, ReplayEnd, decode, decode_replay
from router.clock import Clock
from router.fleet.engine_facts import EventEndpoint
from router.fleet.engine_limits import OverLimit
from router.kvcache.events import EventBatch, TargetId
from router.kvcache.instance_bounds import IndexLimit
from router.tasks import Tasks

log = logging.getLogger("warmroute.feeds.kv_events")


class EventHandler(Protocol):
    """Receives events. A returned int requests a replay from that sequence number, one at a time per target."""

    def on_connected(self, target: TargetId) -> int | None:
        """Handle a connect or reconnect: the engine may be a new process."""

    def on_batch(self, target: TargetId, batch: EventBatch) -> int | None:
        """Handle a live batch."""

    def on_replayed(self, target: TargetId, batch: EventBatch) -> int | None:
        """Handle a batch of the running replay."""

    def on_replay_end(self, target: TargetId, complete: bool) -> int | None:
        """Handle the end of a replay; `complete`: the engine's end marker arrived in time."""

    def on_malformed(self, target: TargetId, reason: str) -> None:
        """Count a message that could not be decoded."""

    def resume(self, target: TargetId) -> bool:
        """Apply a piece of what is left of earlier batches. Return False when nothing was left."""

    def sweep(self) -> bool:
        """Clean up a piece of what was applied for targets that are gone. Return False when nothing was left."""

    def over_bounds(self, target: TargetId) -> tuple[IndexLimit, str] | None:
        """Return the limit that stops the intake of this target's events, and why; None if no limit is exceeded."""


class LimitObserver(Protocol):
    """Receives the engines that publish more than is taken in."""

    def target_over_limit(self, target: TargetId, over: OverLimit) -> None:
        """Handle an exceeded limit, possibly by unsubscribing from all targets of that engine."""


class KvEventSubscriber:
    """The event streams of all targets, on the event loop that is running at the first `subscribe`."""

    def __init__(
        self, handler: EventHandler, limits: LimitObserver, tasks: Tasks, clock: Clock, replay_timeout_s: float
    ) -> None:
        self._handler = handler
        self._limits = limits
        self._replay_timeout_s = replay_timeout_s
        self._tasks = tasks
        self._reader = StreamReader(clock)
        self._reader_task: asyncio.Task[None] | None = None
        self._streams: dict[TargetId, _Stream] = {}
        self._intakes: WeakValueDictionary[str, Intake] = WeakValueDictionary()  # by instance
        self._sweeper = _Sweeper(handler)

    def subscribe(self, target: TargetId, source: EventEndpoint, *, host_cpu: bool = False) -> None:
        """Subscribe to `target` at `source`, replacing an earlier subscription (`host_cpu`: see `decode`)."""
        self.unsubscribe(target)
        if self._reader_task is None:
            self._reader_task = self._tasks.supervise("pump", self._reader.run)
        intake = self._intakes.setdefault(target.rpartition("/")[0], Intake())
        try:
            self._streams[target] = _Stream(
                target,
                source,
                host_cpu,
                self._reader,
                self._handler,
                self._limits,
                intake,
                self._tasks,
                self._replay_timeout_s,
            )
        except ValueError as error:
            log.error("%s: cannot subscribe to KV events at %s: %s", target, source.endpoint, error)
            self._handler.on_malformed(target, "endpoint")

    def unsubscribe(self, target: TargetId) -> None:
        """Stop receiving events of `target`; a no-op without a subscription."""
        if (stream := self._streams.pop(target, None)) is not None:
            stream.close()
            self._reader.add(self._sweeper)

    async def close(self) -> None:
        """Close all subscriptions and sockets."""
        for target in list(self._streams):
            self.unsubscribe(target)
        if self._reader_task is not None:
            self._reader_task.cancel()
            await asyncio.gather(self._reader_task, return_exceptions=True)
            self._reader_task = None


class _Sweeper:
    """A `PieceWork` of the reader that sweeps when no other events arrive that would do so."""

    def __init__(self, handler: EventHandler) -> None:
        self.listed = False
        self._handler = handler

    def step(self) -> bool:
        return self._handler.sweep()


class _Stream:
    """The subscription of one rank: a `PieceWork` of the reader."""

    def __init__(
        self,
        target: TargetId,
        source: EventEndpoint,
        host_cpu: bool,
        reader: StreamReader,
        handler: EventHandler,
        limits: LimitObserver,
        intake: Intake,
        tasks: Tasks,
        replay_timeout_s: float,
    ) -> None:
        """Raises ValueError for an endpoint that cannot be connected to."""
        self.listed = False
        self._target = target
        self._source = source
        self._host_cpu = host_cpu
        self._reader = reader
        self._handler = handler
        self._limits = limits
        self._intake = intake
        self._tasks = tasks
        self._replay_timeout_s = replay_timeout_s
        self._decoding: LargeBatch | None = None
        self._decoding_replay = False  # `_decoding` belongs to the running replay
        self._replay: ZmtpSocket | None = None
        self._replay_answered = False  # the running replay, with any message
        self._replay_silent = False  # the last replay; logged once
        self._replay_timer: asyncio.TimerHandle | None = None
        self._live = ZmtpSocket(
            "SUB", source.endpoint, subscription(source.topic), intake, self._callbacks(self._on_open), tasks
        )

    def close(self) -> None:
        self._live.close()
        self._close_replay()
        self._decoding = None

    # called by the reader

    def step(self) -> bool:
        if self._live.closed:
            return False
        if self._handler.resume(self._target):
            more = True
        elif self._decoding is not None:
            more = True
            if (decoded := self._decoding.step()) is not None:
                self._decoding = None
                self._take(decoded, self._decoding_replay)
        else:
            more = self._read()
        if not self._live.closed and (over := self._handler.over_bounds(self._target)) is not None:
            self._limits.target_over_limit(self._target, OverLimit(*over))
        return more and not self._live.closed

    def _read(self) -> bool:
        """Take the next message, the replay's first. Return False when there is none."""
        if self._replay is not None and (frames := self._replay.next_message()) is not None:
            if frames:
                self._take(decode_replay(frames, host_cpu=self._host_cpu), True)
            return True
        if (frames := self._live.next_message()) is None:
            return False
        if frames:
            self._take(decode(frames, host_cpu=self._host_cpu), False)
        return True

    def _take(
        self, message: EventBatch | LargeBatch | ReplayEnd | MalformedMessage | OverLimit, replayed: bool
    ) -> None:
        match message:
            case LargeBatch():
                self._decoding, self._decoding_replay = message, replayed
            case EventBatch():
                self._replay_answered = self._replay_answered or replayed
                handle = self._handler.on_replayed if replayed else self._handler.on_batch
                self._start_replay(handle(self._target, message))
            case ReplayEnd():
                self._replay_answered = True
                self._end_replay(True)
            case MalformedMessage(reason):
                self._handler.on_malformed(self._target, reason)
            case OverLimit():
                self._limits.target_over_limit(self._target, message)

    # called by the sockets

    def _callbacks(self, on_open: Callable[[], None]) -> ZmtpCallbacks:
        return ZmtpCallbacks(on_open, self._on_readable, self._on_excess)

    def _on_readable(self) -> None:
        self._reader.add(self)

    def _on_open(self) -> None:
        if not self._decoding_replay:
            self._decoding = None  # from the previous connection: the first message shows which process this is
        self._start_replay(self._handler.on_connected(self._target))

    def _on_excess(self, over: OverLimit) -> None:
        self._limits.target_over_limit(self._target, over)

    # replays

    def _start_replay(self, start_seq: int | None) -> None:
        if start_seq is None or self._live.closed:  # the handler may have unsubscribed during its call
            return
        self._close_replay()
        self._replay_answered = False
        self._replay_timer = asyncio.get_running_loop().call_later(self._replay_timeout_s, self._end_replay, False)
        endpoint = self._source.replay_endpoint
        if endpoint is None:  # the timeout ends the replay
            return
        request = [b"", start_seq.to_bytes(8, "big")]
        try:
            self._replay = ZmtpSocket("DEALER", endpoint, request, self._intake, self._callbacks(_ignore), self._tasks)
        except ValueError as error:
            log.error("%s: cannot request a KV event replay at %s: %s", self._target, endpoint, error)

    def _end_replay(self, complete: bool) -> None:
        self._close_replay()
        if self._replay_answered == self._replay_silent:
            self._log_silence(not self._replay_answered)
        self._start_replay(self._handler.on_replay_end(self._target, complete))
        self._reader.add(self)  # live batches that waited for the replay

    def _log_silence(self, silent: bool) -> None:
        self._replay_silent = silent
        endpoint = self._source.replay_endpoint
        if silent:
            what = "%s: no KV event replay from %s within %g s: missed events stay missed, and hits with them"
            log.warning(what, self._target, endpoint, self._replay_timeout_s)
        else:
            log.info("%s: KV event replays from %s are answered again", self._target, endpoint)

    def _close_replay(self) -> None:
        if self._replay_timer is not None:
            self._replay_timer.cancel()
            self._replay_timer = None
        if self._replay is not None:
            self._replay.close()
            self._replay = None
        if self._decoding_replay:
            self._decoding = None


def _ignore() -> None:
    """Do nothing when a replay's socket has connected: its request is on the way."""
