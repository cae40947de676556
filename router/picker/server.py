"""The picker's gRPC listeners: one for gateways (ext_proc, access logs, health) and one for probes (health).

Runs on the router's event loop. Gateways keep few connections and open a stream for each HTTP request. How many
requests are served is bounded where each begins (`limits.concurrent`): one too many is answered with a refusal. A
stream that is silent where something should come is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc

from router.config.sections.base import url_host
from router.config.sections.listeners import LimitsConfig, ListenConfig, PickerConfig
from router.errors import ConfigError
from router.picker.access_log_pb2 import StreamAccessLogsMessage
from router.picker.answer_log import AnswerLog
from router.picker.credentials import server_credentials
from router.picker.exchange import PickerExchange
from router.picker.ext_proc_pb2 import ProcessingRequest
from router.picker.health import PickerHealth
from router.picker.messages import Phase, build_refusal, build_response_piece, pass_on
from router.picker.names import ACCESS_LOG, EXT_PROC, FAIRNESS_IDS
from router.proxy.call import Headers
from router.proxy.client_address import TrustedProxies, client_of
from router.tasks import Tasks

log = logging.getLogger("warmroute.picker")

MESSAGE_OVERHEAD_BYTES = 1024 * 1024  # of one message beside a body
STREAMS = 100_000  # of one connection
CHECK_S = 1.0
CLOSE_S = 0.1
LAST_GRACE_S = 0.1
POLL_S = 0.02
UNSUPPORTED = b"request_body_mode must be FULL_DUPLEX_STREAMED or BUFFERED: the choice depends on the request's body"


class PickerBounds(NamedTuple):
    """Bounds of one exchange: bytes of a body, and seconds of silence in a request's body, before an answer and in
    it.
    """

    body_bytes: int
    stall_s: float
    first_byte_s: float
    idle_s: float


def read_bounds(limits: LimitsConfig, listen: ListenConfig) -> PickerBounds:
    """Return the bounds of the proxy, for exchanges of a picker."""
    return PickerBounds(
        limits.body_bytes, listen.body_idle_timeout_s, limits.first_byte_timeout_s, limits.idle_timeout_s
    )


class PickerServer:
    """Serves gateways from `start` to `stop`; `answer` answers one exchange. Raises `ConfigError` for certificate files
    that cannot be used.
    """

    def __init__(
        self,
        config: PickerConfig,
        bounds: PickerBounds,
        proxies: TrustedProxies,
        answer: Callable[[PickerExchange], Awaitable[None]],
        answer_log: AnswerLog,
        health: PickerHealth,
        wall_s: float,
    ) -> None:
        self._config = config
        self._bounds = bounds
        self._proxies = proxies
        self._answer = answer
        self._log = answer_log
        self._health = health
        self._credentials = server_credentials(config, wall_s)
        self._tasks = Tasks("picker")
        self._exchanges: dict[PickerExchange, asyncio.Task[Any]] = {}  # with the task that reads their messages
        self._server: grpc.aio.Server | None = None
        self._probed: grpc.aio.Server | None = None
        self.port = config.port
        self.health_port = config.health_port

    async def start(self) -> None:
        """Listen; `port` and `health_port` are the bound ones from here on. Raises `ConfigError` when an address cannot
        be bound.
        """
        logging.getLogger("grpc._cython.cygrpc").addFilter(_is_news)
        config = self._config
        options = [
            ("grpc.so_reuseport", 0),
            ("grpc.max_receive_message_length", self._bounds.body_bytes + MESSAGE_OVERHEAD_BYTES),
            ("grpc.max_concurrent_streams", STREAMS),
        ]
        self._server, self._probed = grpc.aio.server(options=options), grpc.aio.server(options=options[:1])
        for server in (self._server, self._probed):
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        methods: Any = grpc.stream_stream_rpc_method_handler(self._process)
        logs: Any = grpc.stream_unary_rpc_method_handler(self._follow_logs)
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(EXT_PROC, {"Process": methods}),
                grpc.method_handlers_generic_handler(ACCESS_LOG, {"StreamAccessLogs": logs}),
            )
        )
        self.port = _bind(self._server, config.host, config.port, self._credentials, "picker.port")
        self.health_port = _bind(self._probed, config.host, config.health_port, None, "picker.health_port")
        await self._server.start()
        await self._probed.start()
        self._tasks.supervise("check", self._check)
        log.info("picker on %s:%d, its health on port %d", config.host, self.port, self.health_port)

    async def stop(self, grace_s: float) -> None:
        """Stop when the open exchanges have ended, or after `grace_s`; then they are cut off, and with them the log
        streams, which have no end.
        """
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + grace_s
        while self._exchanges and loop.time() < give_up_at:  # noqa: ASYNC110  they end in many places
            await asyncio.sleep(POLL_S)
        for server in (self._server, self._probed):
            if server is not None:
                await server.stop(LAST_GRACE_S)
        await self._tasks.close()

    # exchanges

    async def _process(self, _: Any, context: Any) -> None:
        """Serve one HTTP request: read its messages, while another task answers it."""
        first = await _read(context, ProcessingRequest)
        if first is None:
            return
        if first.observability_mode:
            while await _read(context, ProcessingRequest) is not None:
                pass  # a copy, for which no reply is due
            return
        if first.WhichOneof("request") != "request_headers":
            await _pass_all(first, context)  # an answer of the gateway's own to a request that did not come here
            return
        exchange = PickerExchange(first, context.write, partial(self._find_sender, context))
        if not exchange.supported:
            await context.write(build_refusal(500, [(b"content-type", b"text/plain")], UNSUPPORTED, "warmroute"))
            return
        reading = asyncio.current_task()
        assert reading is not None
        self._exchanges[exchange] = reading
        try:
            await self._converse(exchange, context, reading)
        except asyncio.CancelledError:
            if not exchange.closing:
                raise
            reading.uncancel()  # an answer of our own has gone out: the stream ends here
        finally:
            del self._exchanges[exchange]
            exchange.on_stream_end()

    async def _converse(self, exchange: PickerExchange, context: Any, reading: asyncio.Task[Any]) -> None:
        """Read until nothing more is to come."""
        now = asyncio.get_running_loop().time
        exchange.gateway = client_of(_host(context.peer()))
        exchange.since_s = now()
        if exchange.buffered:
            await exchange.send(pass_on("request_headers"))
        else:
            exchange.task = self._tasks.spawn("exchange", self._run(exchange, reading))
        while not (exchange.left or exchange.complete):
            message = await _read(context, ProcessingRequest)
            if message is None:
                return
            exchange.since_s = now()
            if message.HasField("response_headers"):
                await exchange.settle_head(message)
            for reply in exchange.on_message(message):
                await exchange.send(reply)
            if exchange.task is None and exchange.body_complete:
                exchange.task = self._tasks.spawn("exchange", self._run(exchange, reading))

    async def _run(self, exchange: PickerExchange, reading: asyncio.Task[Any]) -> None:
        """Answer, and send an answer of our own if it comes to that."""
        try:
            await self._answer(exchange)
            refusal = exchange.refusal()
            if refusal is not None and not exchange.gone:
                await exchange.send(refusal)
                asyncio.get_running_loop().call_later(CLOSE_S, self._close, exchange)
        finally:
            exchange.release()
            if exchange in self._exchanges and not exchange.started:
                reading.cancel()

    def _close(self, exchange: PickerExchange) -> None:
        """End a stream after an answer of our own. Envoy has done so by then, other peers may wait for it."""
        if (reading := self._exchanges.get(exchange)) is not None:
            exchange.closing = True
            reading.cancel()

    def _find_sender(self, context: Any, headers: Headers) -> str:
        """Return whom a request is counted for: by llm-d's header, else its client's address as the gateway says."""
        fields = dict(headers)
        for name in FAIRNESS_IDS:
            if fields.get(name):
                return fields[name].decode("latin-1")
        return self._proxies.find_client(headers) or client_of(_host(context.peer()))

    async def _check(self) -> None:
        """Cut off what is silent, and give up answers that are not followed."""
        bounds = self._bounds
        while True:
            await asyncio.sleep(CHECK_S)
            now = asyncio.get_running_loop().time()
            for exchange, reading in list(self._exchanges.items()):
                if exchange.check(now, bounds.stall_s, bounds.first_byte_s, bounds.idle_s):
                    reading.cancel()
            self._log.expire()

    # access logs

    async def _follow_logs(self, _: Any, context: Any) -> bytes:
        gateway = client_of(_host(context.peer()))
        self._log.on_stream_begin(gateway)
        try:
            while (message := await _read(context, StreamAccessLogsMessage)) is not None:
                self._log.take(message)
        finally:
            self._log.on_stream_end(gateway)
        return b""


def _is_news(record: logging.LogRecord) -> bool:
    """Return False for what gRPC's server says when both sides end a stream at once: nothing is lost by it."""
    return "ExecuteBatchError raised in core by servicer method" not in record.getMessage()


async def _read(context: Any, kind: Any) -> Any:
    """Return the next message, None at the stream's end. One that is none ends the stream with an error."""
    data = await context.read()
    if data is grpc.aio.EOF:
        return None
    try:
        return kind.FromString(data)
    except DecodeError:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a {kind.DESCRIPTOR.name}")


async def _pass_all(message: Any, context: Any) -> None:
    """Send back unchanged what comes, to the end."""
    full_duplex = not message.HasField("protocol_config") or message.protocol_config.response_body_mode == 4
    while message is not None and (phase := message.WhichOneof("request")) is not None:
        await context.write(_unchanged(phase, message, full_duplex))
        message = await _read(context, ProcessingRequest)


def _unchanged(phase: Phase, message: Any, full_duplex: bool) -> bytes:
    if full_duplex and phase == "response_body":
        return build_response_piece(message.response_body.body, message.response_body.end_of_stream)
    return pass_on(phase)


def _host(peer: str) -> str:
    """Return the address in what gRPC calls a peer, such as `ipv4:10.0.0.1:4711` or `ipv6:%5B::1%5D:4711`."""
    family, _, address = peer.partition(":")
    if family not in ("ipv4", "ipv6"):
        return peer
    return address.rpartition(":")[0].replace("%5B", "").replace("%5D", "").strip("[]")


def _bind(
    server: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None, setting: str
) -> int:
    address = f"{url_host(host)}:{port}"
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ConfigError(f"{setting}: cannot listen on {address}: it is in use, or not to be had") from error
