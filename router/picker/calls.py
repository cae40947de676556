"""The two calls of a gateway: one for each HTTP request (ext_proc), and one for its access log."""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple, Protocol

from google.protobuf.message import DecodeError

from router.picker.access_log_pb2 import StreamAccessLogsMessage
from router.picker.answer_log import AnswerLog
from router.picker.exchange import PickerExchange
from router.picker.ext_proc_pb2 import FULL_DUPLEX_STREAMED, ProcessingRequest
from router.picker.grpc_stream import CANCELLED, INTERNAL, INVALID_ARGUMENT, GrpcStream
from router.picker.log_entries import read_ends
from router.picker.messages import build_refusal, build_response_piece, pass_on
from router.picker.names import FAIRNESS_IDS
from router.proxy.call import Headers
from router.proxy.client_address import TrustedProxies, client_of
from router.tasks import Tasks

log = logging.getLogger("warmroute.picker")

CLOSE_S = 1.0  # Envoy closes its side at once
UNSUPPORTED = b"request_body_mode must be FULL_DUPLEX_STREAMED or BUFFERED: the choice depends on the request's body"


class PickerBounds(NamedTuple):
    """Bounds of one exchange: bytes of a body, and seconds of silence in a request's body, before an answer and in
    an answer; `budget_bytes` is for the incomplete messages of all calls.
    """

    body_bytes: int
    budget_bytes: int
    stall_s: float
    first_byte_s: float
    idle_s: float


class PickerHandler(Protocol):
    """Answers the exchanges of gateways, as `RequestHandler` answers clients' exchanges."""

    async def answer(self, exchange: PickerExchange) -> None:
        """Answer `exchange`."""

    def on_crash(self, exchange: PickerExchange) -> tuple[int, Headers, bytes]:
        """Return the answer to an exchange for which `answer` raised an exception."""


class ExchangeContext(NamedTuple):
    """The values that the calls of all gateways share."""

    handler: PickerHandler
    proxies: TrustedProxies
    tasks: Tasks
    open: set[ExtProcCall]
    bounds: PickerBounds


class ExtProcCall:
    """The call of one HTTP request: its messages are passed to an exchange, which has its own task to answer it."""

    def __init__(self, context: ExchangeContext, stream: GrpcStream) -> None:
        self._context = context
        self._stream = stream
        self._exchange: PickerExchange | None = None
        self._passes: bool | None = None  # not None: messages are passed on; True: in full duplex mode
        self._copy = False  # the gateway only sends a copy (observability mode): no reply is due
        self._held: list[ProcessingRequest] = []  # messages held back until a watch for the answer is set
        self._now = asyncio.get_running_loop().time
        self._since_s = self._now()
        context.open.add(self)

    def on_message(self, data: bytes) -> None:
        try:
            message = ProcessingRequest.FromString(data)
        except DecodeError:
            self._end(INVALID_ARGUMENT, "not a ProcessingRequest")
            return
        self._since_s = self._now()
        if self._exchange is not None:
            self._take(self._exchange, message)
        elif self._passes is not None:
            self._pass_on(message, self._passes)
        elif not self._copy:
            self._begin(message)

    def _begin(self, first: ProcessingRequest) -> None:
        """Handle the first message."""
        if first.observability_mode:
            self._copy = True
            return
        if first.WhichOneof("request") != "request_headers":  # the gateway's own answer to a request not sent here
            has_modes = first.HasField("protocol_config")
            self._passes = not has_modes or first.protocol_config.response_body_mode == FULL_DUPLEX_STREAMED
            self._pass_on(first, self._passes)
            return
        exchange = PickerExchange(first, self._stream.send, self._find_sender)
        if not exchange.supported:
            self._stream.send(build_refusal(500, [(b"content-type", b"text/plain")], UNSUPPORTED, "warmroute"))
            self._end()
            return
        exchange.gateway = client_of(self._stream.peer)
        exchange.resume = self._resume
        self._exchange = exchange
        if exchange.buffered:
            self._stream.send(pass_on("request_headers"))
        else:
            self._answer(exchange)

    def _answer(self, exchange: PickerExchange) -> None:
        exchange.task = self._context.tasks.spawn("exchange", self._run(exchange))

    async def _run(self, exchange: PickerExchange) -> None:
        """Answer the exchange, and send the router's own answer if it made one."""
        refusal = None
        try:
            try:
                await self._context.handler.answer(exchange)
            except Exception:
                log.exception("%s %s failed", exchange.method, exchange.path)
                answer = self._context.handler.on_crash(exchange)
                if not exchange.started:
                    exchange.answer(*answer)
            refusal = exchange.refusal()
        finally:
            exchange.release()
            if refusal is None and not exchange.started:
                self._end(INTERNAL)
        if refusal is not None:
            self._stream.send(refusal)
            if exchange.body_complete:
                self._end()
            else:  # a peer still sending the body may take the end of its call for a failure
                asyncio.get_running_loop().call_later(CLOSE_S, self._end)

    def _take(self, exchange: PickerExchange, message: ProcessingRequest) -> None:
        if exchange.moving:
            self._held.append(message)
            return
        if message.HasField("response_headers"):
            exchange.settle_head(message)
            if exchange.moving:
                self._held.append(message)
                return
        self._reply(exchange, message)

    def _resume(self) -> None:
        """Handle the messages that were held back; the first is the answer's head, which was examined already."""
        held, self._held = self._held, []
        if self._exchange is not None and held:
            self._reply(self._exchange, held[0])
            for message in held[1:]:
                self._take(self._exchange, message)

    def _reply(self, exchange: PickerExchange, message: ProcessingRequest) -> None:
        for reply in exchange.on_message(message):
            self._stream.send(reply)
        if exchange.task is None and exchange.body_complete:
            self._answer(exchange)
        if exchange.left or exchange.complete:
            self._end()

    def _pass_on(self, message: ProcessingRequest, full_duplex: bool) -> None:
        phase = message.WhichOneof("request")
        if phase is None:
            self._end()
        elif full_duplex and phase == "response_body":
            body = message.response_body
            self._stream.send(build_response_piece(body.body, body.end_of_stream))
        else:
            self._stream.send(pass_on(phase))

    def _find_sender(self, headers: Headers) -> str:
        """Return the party that a request is counted for: the value of llm-d's header, else the client's address as
        the gateway reports it.
        """
        fields = dict(headers)
        for name in FAIRNESS_IDS:
            if fields.get(name):
                return fields[name].decode("latin-1")
        return self._context.proxies.find_client(headers) or client_of(self._stream.peer)

    def on_half_close(self) -> None:
        self._end()

    def on_gone(self) -> None:
        self._end(CANCELLED)

    def _end(self, status: int = 0, message: str = "") -> None:
        """End the call and notify its exchange."""
        self._context.open.discard(self)
        self._stream.finish(status, message)
        if self._exchange is not None:
            self._exchange.on_stream_end()

    def check(self, now_s: float) -> None:
        """End a call that has waited too long for its gateway."""
        bounds, exchange = self._context.bounds, self._exchange
        if exchange is None:
            silent = now_s - self._since_s > (bounds.stall_s if self._passes is None else bounds.idle_s)
        else:
            silent = exchange.check(now_s, self._since_s, bounds.stall_s, bounds.first_byte_s, bounds.idle_s)
        if silent:
            self._end(CANCELLED, "nothing came for too long")


class AccessLogCall:
    """The log stream of one worker of a gateway."""

    def __init__(self, log: AnswerLog, stream: GrpcStream) -> None:
        self._log = log
        self._stream = stream
        self._gateway = client_of(stream.peer)
        self._ended = False
        log.on_stream_begin(self._gateway)

    def on_message(self, data: bytes) -> None:
        try:
            message = StreamAccessLogsMessage.FromString(data)
        except DecodeError:
            self._stream.finish(INVALID_ARGUMENT, "not a StreamAccessLogsMessage")
            self.on_gone()
            return
        for key, end in read_ends(message):
            self._log.take(key, end)

    def on_half_close(self) -> None:
        self._stream.send(b"")
        self._stream.finish()
        self.on_gone()

    def on_gone(self) -> None:
        if not self._ended:
            self._ended = True
            self._log.on_stream_end(self._gateway)
