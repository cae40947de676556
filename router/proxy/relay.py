"""Relays one attempt: sends the request to one engine and relays its answer to the client, byte for byte as it
arrives.

Nothing is sent to the client before the engine has begun to answer (head and first byte of body), so until then the
caller may try another engine; the caller decides what may be retried. A 500, 502, 503 or 504 is held back, to be sent
if no other engine answers. A JSON answer is held until it is whole, because its engine may die while sending it.
After that there are only three ends: the answer is whole; the engine breaks it off (an event stream is closed with an
error event in the client's dialect, anything else is cut off so that the client notices); or the client disconnects,
which cancels the relay and thereby closes the engine's connection, by which vLLM stops the request.

A broken stream that another engine can continue is left open (`RelayBroken.open`). The caller then relays the next
engine's answer into the open stream, sending only its body, or ends the stream.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, Literal, NamedTuple, Protocol

from router.fleet.breaker import FAILURE_STATUSES
from router.kvcache.events import TargetId
from router.prompt.usage import Usage
from router.proxy.call import ClientRequest
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.headers import AnswerLabels, Headers, content_encoding, last_value, response_headers
from router.proxy.upstreams import Upstream, UpstreamExchange, UpstreamRequest, UpstreamTimeouts, UpstreamUnanswered

REFUSAL_BYTES = 64 * 1024
HELD_BYTES: Final = 1024 * 1024  # of a JSON answer; a larger one is relayed as it arrives and cannot be retried
BUSY: Final = 503


class AnswerWatch(Protocol):
    """Observes an answer as it passes."""

    def on_first_byte(self, status: int) -> None:
        """Note that the first byte of the answer's body has arrived, or its end if it has no body."""

    def on_encoded(self, encoding: bytes) -> None:
        """Note that the answer is compressed: nothing in it can be read or removed. Called before `feed`."""

    def feed(self, data: bytes) -> bytes:
        """Take a piece of the answer as it arrived; return the part that the client may receive now."""

    def flush(self) -> bytes:
        """Return the part held back, which may be sent because the answer is whole."""


class RelayWatch(AnswerWatch, Protocol):
    """Observes an answer that another engine may continue."""

    @property
    def stopped(self) -> bool:
        """True once the engine's bytes no longer belong to the answer: nothing more from this engine is relayed."""

    def can_continue(self) -> bool:
        """Return whether another engine can continue this answer, of which only whole events have been relayed."""

    def end_broken(self, failure: ExchangeFailure, last: bytes) -> bytes:
        """Return the events that end a broken stream in the client's dialect. `last`: the bytes sent last."""


class OutgoingRequest:
    """A request on its way to one instance. `hides`: the watch may remove something from a stream; `renames`: the
    watch may change the length of any body.
    """

    def __init__(
        self,
        instance: str,
        request: UpstreamRequest,
        labels: AnswerLabels,
        *,
        hides: bool = False,
        renames: bool = False,
    ) -> None:
        self.instance = instance
        self.request = request
        self.labels = labels
        self.hides = hides
        self.renames = renames

    def with_body(self, body: bytes) -> OutgoingRequest:
        """Return the same request with another body."""
        request = self.request.with_body(body)
        return OutgoingRequest(self.instance, request, self.labels, hides=self.hides, renames=self.renames)


class EngineRefusal(NamedTuple):
    """An engine's own answer that it is too busy, or that the request is invalid."""

    status: int
    headers: Headers
    body: bytes


class RelayNotStarted(NamedTuple):
    """Nothing was sent to the client. Only an engine that `died`, was `stuck` or `failed` (with a 5xx) can have worked
    on it. `prefill`: the prefill half of a pair (`disaggregated.py`) failed in this way.
    """

    reason: Literal["connect", "busy", "died", "stuck", "failed"]
    detail: str = ""
    refusal: EngineRefusal | None = None
    prefill: bool = False
    moved_to: TargetId | None = None  # the gateway went to this target instead, which answers


class RelayFinished(NamedTuple):
    """The whole answer was relayed. `connect_s`: the time that a new connection took; None, here and below, if a
    gateway made the connection. `usage`: the usage that a gateway read from the answer.
    """

    status: int
    connect_s: float | None
    usage: Usage | None = None


class RelayBroken(NamedTuple):
    """The engine failed after its first byte; the client was notified as well as the format allows."""

    status: int
    failure: ExchangeFailure
    connect_s: float | None
    open: bool = False  # the client was not notified yet


class RelayCut(NamedTuple):
    """A gateway ended the exchange before the answer was whole: the engine failed, or the client disconnected."""

    detail: str


class RelayDeadline(NamedTuple):
    """The first byte did not arrive in time; nothing was sent to the client."""


class RelayRejected(NamedTuple):
    """A prefill half rejected the request (4xx) before anything was sent to the client; or the next engine for a
    broken stream did not continue the stream (any status), and nothing of its answer was used.
    """

    refusal: EngineRefusal


RelayEnd = RelayNotStarted | RelayFinished | RelayBroken | RelayCut | RelayDeadline | RelayRejected


async def relay(
    call: ClientRequest, upstreams: Upstream, outgoing: OutgoingRequest, limits: UpstreamTimeouts, watch: RelayWatch
) -> RelayEnd:
    """Send `outgoing` to its engine and relay the answer to the client."""
    return await relay_answer(call, await send(upstreams, outgoing, limits), outgoing, watch)


def send(
    upstreams: Upstream, outgoing: OutgoingRequest, limits: UpstreamTimeouts
) -> Awaitable[UpstreamExchange | UpstreamUnanswered]:
    """Send `outgoing` and wait until the engine has begun to answer: the first half of `relay`."""
    return upstreams.send(outgoing.instance, outgoing.request, first_byte_s=limits.first_byte_s, idle_s=limits.idle_s)


async def relay_answer(
    call: ClientRequest, answer: UpstreamExchange | UpstreamUnanswered, outgoing: OutgoingRequest, watch: RelayWatch
) -> RelayEnd:
    """Relay an answer that has begun: the second half of `relay`."""
    if isinstance(answer, UpstreamUnanswered):
        if answer.reason == "late":
            return RelayDeadline()
        return RelayNotStarted(answer.reason, answer.detail)
    with answer:
        if answer.status == BUSY:
            refusal = await read_refusal(answer, outgoing.labels)
            return RelayNotStarted("busy", "the engine answered 503", refusal)
        if answer.status in FAILURE_STATUSES and not call.started:
            refusal = await read_refusal(answer, outgoing.labels)
            return RelayNotStarted("failed", f"the engine answered {answer.status}", refusal)
        if call.started:
            return await _stream_rest(call, answer, watch)
        held, kind = b"", _content_type(answer.headers)
        if answer.status == 200 and kind.partition(b";")[0].strip() == b"application/json":  # not JSON lines
            held = await answer.hold(HELD_BYTES)
            if (failure := answer.failure) is not None:
                return RelayNotStarted("stuck" if failure is ExchangeFailure.STUCK else "died", failure.value)
        return await _stream(call, answer, outgoing, watch, kind, held)


async def read_refusal(answer: UpstreamExchange, labels: AnswerLabels) -> EngineRefusal | None:
    """Return the whole answer, which may be sent to the client; None when it is too large or breaks off."""
    body = await answer.read_all(REFUSAL_BYTES)
    if body is None:
        return None
    headers = response_headers(answer.headers, labels, resized=True)
    return EngineRefusal(answer.status, headers, body)


def _content_type(headers: Headers) -> bytes:
    return last_value(headers, b"content-type").lower()


async def _stream(
    call: ClientRequest,
    answer: UpstreamExchange,
    outgoing: OutgoingRequest,
    watch: RelayWatch,
    content_type: bytes,
    held: bytes,
) -> RelayEnd:
    """Relay an answer, of which `held` has already been read."""
    watch.on_first_byte(answer.status)
    stream = content_type.startswith(b"text/event-stream")
    if encoding := content_encoding(answer.headers):
        watch.on_encoded(encoding)
        stream = False  # no event can be added to it or taken from it
    resized = (outgoing.hides and stream) or (outgoing.renames and not encoding)
    headers = response_headers(answer.headers, outgoing.labels, resized=resized)
    call.start(answer.status, headers)
    client = _ClientSink(call, watch)
    # An added event would exceed a length.
    extensible = stream and (resized or not any(name == b"content-length" for name, _ in answer.headers))
    if extensible:
        call.last_events = lambda: watch.end_broken(ExchangeFailure.STOPPED, client.last_sent)
    if held:
        client.take(held, answer.drained)
    if (broken := await _pass_body(call, answer, client)) is None:
        return RelayFinished(answer.status, answer.connect_s)
    if stream and watch.can_continue():
        return broken._replace(open=True)
    if extensible:
        call.finish(watch.end_broken(broken.failure, client.last_sent))
    else:
        call.abort()
    return broken


async def _stream_rest(call: ClientRequest, answer: UpstreamExchange, watch: RelayWatch) -> RelayEnd:
    """Relay the answer of an engine that continues a stream whose beginning the client already has."""
    stream = _content_type(answer.headers).startswith(b"text/event-stream")
    if answer.status != 200 or not stream or content_encoding(answer.headers):
        return RelayRejected(EngineRefusal(answer.status, [], await answer.read_all(REFUSAL_BYTES) or b""))
    watch.on_first_byte(answer.status)
    client = _ClientSink(call, watch)
    if (broken := await _pass_body(call, answer, client)) is None:
        return RelayFinished(answer.status, answer.connect_s)
    if watch.stopped and not client.last_sent:
        return RelayRejected(EngineRefusal(answer.status, [], b""))
    return broken._replace(open=True)


async def _pass_body(call: ClientRequest, answer: UpstreamExchange, client: _ClientSink) -> RelayBroken | None:
    """Relay the body and complete the client's answer; return how the answer broke, None if it did not."""
    while await answer.pipe(client.take) and not client.stopped:
        await call.drain()
    if answer.drained and not client.stopped:
        client.finish()
        return None
    failure = ExchangeFailure.REPORTED if client.stopped else answer.failure or ExchangeFailure.CLOSED
    return RelayBroken(answer.status, failure, answer.connect_s)


class _ClientSink:
    """Relays the pieces of an answer to the client, through the watch."""

    __slots__ = ("_call", "_finished", "_watch", "last_sent")

    def __init__(self, call: ClientRequest, watch: RelayWatch) -> None:
        self._call = call
        self._watch = watch
        self._finished = False
        self.last_sent = b""

    def take(self, piece: bytes, last: bool) -> bool:
        """Relay `piece`; return True if nothing more should be passed for now: the client is not reading, or the
        watch stopped.
        """
        visible = self._watch.feed(piece)
        if last and not self._watch.stopped:
            self.finish(visible)
        elif visible:
            self.last_sent = visible
            self._call.write(visible)
        return self._call.write_paused or self._watch.stopped

    @property
    def stopped(self) -> bool:
        """True once the watch has found that the incoming bytes do not belong to the answer."""
        return self._watch.stopped

    def finish(self, last: bytes = b"") -> None:
        """Complete the answer; a second call does nothing."""
        if not self._finished:
            self._finished = True
            self._call.finish(last + self._watch.flush())
