"""One attempt: the request goes to one engine, its answer comes back to the client, byte for byte as it arrives.

Nothing reaches the client before the engine has begun to answer (head and first byte of body), so until then the caller
may try another engine; what may be tried again is the caller's decision. A 503 is swallowed and kept, to be shown if
nobody else can answer. After the first byte there are only three ends: whole, broken by the engine (an event stream is
closed with an error event in the OpenAI shape, anything else is cut so that the client sees it), or the client left,
which cancels this and thereby closes the engine's connection: that is how vLLM is told to stop.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Literal, NamedTuple, Protocol

import msgspec

from router.prompt.prompt import Endpoint
from router.proxy.call import ClientRequest
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.headers import ForwardedHeaders, Headers, response_headers
from router.proxy.upstreams import Upstream, UpstreamExchange, UpstreamRequest, UpstreamTimeouts, UpstreamUnanswered

SHOWN_BYTES = 64 * 1024
BUSY = 503


class RelayWatch(Protocol):
    """Who is told what passes by."""

    def first_byte(self, status: int) -> None:
        """The answer's first byte of body (or its end, if it has none) is here."""

    def feed(self, data: bytes) -> bytes:
        """A piece of the answer, as it arrived; what of it the client may see now."""

    def last(self) -> bytes:
        """The answer is whole: what was held back and may be seen after all."""


class OutgoingRequest(NamedTuple):
    """A request on its way to one target. `hides`: the watch may take something out of the body. `endpoint` says in
    which dialect a broken stream is told of.
    """

    instance: str
    target: str  # for the client's `x-warmroute-target`
    record: str  # and `x-warmroute-record`
    method: str
    path: bytes  # with its query
    headers: ForwardedHeaders
    body: bytes
    rank: int | None = None
    hides: bool = False
    endpoint: Endpoint = Endpoint.OTHER
    waited_ms: float | None = None  # at the door, for the client's `x-warmroute-waited-ms`


class EngineRefusal(NamedTuple):
    """An engine's own answer, kept: that it is too busy, or what is wrong with the request."""

    status: int
    headers: Headers
    body: bytes


class RelayNotStarted(NamedTuple):
    """Nothing was sent to the client. Only one that `died` or `failed` can have worked on the request.

    `prefill`: it was the prefill half of a pair (`legs.py`) that failed so; only such a one can have `failed`, with a
    5xx, since an answering engine's is the client's to see.
    """

    reason: Literal["connect", "busy", "died", "failed"]
    detail: str = ""
    refusal: EngineRefusal | None = None
    prefill: bool = False


class RelayFinished(NamedTuple):
    """The whole answer went through. `connect_s`: the part of the time that a new connection took, here as below."""

    status: int
    connect_s: float


class RelayBroken(NamedTuple):
    """The engine failed after its first byte; the client was told as well as the format allows."""

    status: int
    trouble: ExchangeFailure
    connect_s: float


class RelayDeadline(NamedTuple):
    """No byte within the time for the first one; nothing was sent to the client."""


class RelayRejected(NamedTuple):
    """A prefill half found fault with the request (4xx), before anything was sent to the client."""

    refusal: EngineRefusal


RelayEnd = RelayNotStarted | RelayFinished | RelayBroken | RelayDeadline | RelayRejected


async def relay(
    call: ClientRequest, upstreams: Upstream, outgoing: OutgoingRequest, limits: UpstreamTimeouts, watch: RelayWatch
) -> RelayEnd:
    return await relay_answer(call, await ask(upstreams, outgoing, limits), outgoing, watch)


def ask(
    upstreams: Upstream, outgoing: OutgoingRequest, limits: UpstreamTimeouts
) -> Awaitable[UpstreamExchange | UpstreamUnanswered]:
    """The first half of `relay`: until the engine has begun to answer."""
    question = UpstreamRequest(outgoing.method, outgoing.path, outgoing.headers, outgoing.body, outgoing.rank)
    return upstreams.ask(
        outgoing.instance, question, first_byte_s=limits.first_byte_timeout_s, idle_s=limits.idle_timeout_s
    )


async def relay_answer(
    call: ClientRequest, answer: UpstreamExchange | UpstreamUnanswered, outgoing: OutgoingRequest, watch: RelayWatch
) -> RelayEnd:
    """The second half."""
    if isinstance(answer, UpstreamUnanswered):
        if answer.reason == "late":
            return RelayDeadline()
        return RelayNotStarted(answer.reason, answer.detail)
    with answer:
        if answer.status == BUSY:
            return await _too_busy(answer, outgoing)
        return await _shown(call, answer, outgoing, watch)


async def _too_busy(answer: UpstreamExchange, outgoing: OutgoingRequest) -> RelayNotStarted:
    refusal = await read_refusal(answer, outgoing.target, outgoing.record)
    return RelayNotStarted("busy", "the engine answered 503", refusal)


async def read_refusal(answer: UpstreamExchange, target: str, record: str) -> EngineRefusal | None:
    """The whole answer of `target`, to be shown to the client perhaps. None: too large for that, or it broke off."""
    body = await answer.whole(SHOWN_BYTES)
    if body is None:
        return None
    return EngineRefusal(
        answer.status, response_headers(answer.headers, target=target, record=record, resized=True), body
    )


async def _shown(
    call: ClientRequest, answer: UpstreamExchange, outgoing: OutgoingRequest, watch: RelayWatch
) -> RelayEnd:
    watch.first_byte(answer.status)
    fields = dict(answer.headers)
    stream = fields.get(b"content-type", b"").lower().startswith(b"text/event-stream")
    resized = outgoing.hides and stream
    headers = response_headers(answer.headers, target=outgoing.target, record=outgoing.record, resized=resized)
    if outgoing.waited_ms is not None:
        headers.append((b"x-warmroute-waited-ms", b"%d" % outgoing.waited_ms))
    call.start(answer.status, headers)
    passage = _Passage(call, watch)
    while await answer.pour(passage.take):
        await call.caught_up()
    if answer.drained:
        passage.finish()
        return RelayFinished(answer.status, answer.connect_s)
    trouble = answer.trouble or ExchangeFailure.CLOSED
    if stream and (resized or b"content-length" not in fields):  # an added event would break a promised length
        call.finish(_error_event(trouble, passage.shown, outgoing.endpoint is Endpoint.MESSAGES))
    else:
        call.cut()
    return RelayBroken(answer.status, trouble, answer.connect_s)


class _Passage:
    """The way of an answer's pieces to the client, past the watch."""

    __slots__ = ("_call", "_finished", "_watch", "shown")

    def __init__(self, call: ClientRequest, watch: RelayWatch) -> None:
        self._call = call
        self._watch = watch
        self._finished = False
        self.shown = b""  # what the client saw last

    def take(self, piece: bytes, last: bool) -> bool:
        """True: the client is behind."""
        seen = self._watch.feed(piece)
        if last:
            self.finish(seen)
        elif seen:
            self.shown = seen
            self._call.chunk(seen)
        return self._call.behind

    def finish(self, last: bytes = b"") -> None:
        """A second time does nothing."""
        if not self._finished:
            self._finished = True
            self._call.finish(last + self._watch.last())


def _error_event(trouble: ExchangeFailure, last: bytes, anthropic: bool) -> bytes:
    """An event of its own: a half-sent one before it is closed first. Anthropic's clients go by the event's name."""
    gap = b"" if not last or last.endswith((b"\n\n", b"\r\n\r\n")) else b"\n\n"
    if anthropic:
        told = {"type": "error", "error": {"type": "api_error", "message": trouble.value}}
        return gap + b"event: error\ndata: " + msgspec.json.encode(told) + b"\n\n"
    error = {"message": trouble.value, "type": "upstream_error", "param": None, "code": "engine_failed"}
    return gap + b"data: " + msgspec.json.encode({"error": error}) + b"\n\n"
