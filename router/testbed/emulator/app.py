"""The ASGI application of one emulated engine: routes, authentication, and the shape of errors.

Beside vLLM's own endpoints it has these, which need no API key and are not affected by faults:

    GET  /emulate/last?path=P   the newest requests (to P), as they arrived: for tests
    GET  /emulate/state         per rank, the core's counters
    GET  /emulate/faults        the faults in force;  POST changes those that its JSON object names
    POST /emulate/restart       the engine processes crash and come back with nothing cached
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

import msgspec

from router.clock import Clock
from router.errors import BadRequest, NotFound, RequestRefused
from router.tasks import Tasks
from router.testbed.emulator.adapters import AdapterEndpoints
from router.testbed.emulator.engine_cores import EngineCores, EngineFailed
from router.testbed.emulator.generate import SHAPES, GenerateEndpoints
from router.testbed.emulator.http_server import ClientLeft, HttpExchange, Message, Receive, Send
from router.testbed.emulator.kv_connectors import KvConnectors
from router.testbed.emulator.metrics import render_metrics
from router.testbed.emulator.options import EngineOptions
from router.testbed.emulator.other_endpoints import OtherEndpoints
from router.testbed.emulator.vocabulary import Vocabulary

log = logging.getLogger("warmroute.engine")

AUTHENTICATED_PATHS = ("/v1", "/v2", "/inference")
REQUEST_LOG_SIZE = 256  # requests stored for /emulate/last
Handler = Callable[[HttpExchange], Awaitable[None]]


class EmulatorApp:
    """A plain ASGI callable, without a framework, because benchmarks measure the router and not its engines."""

    def __init__(
        self,
        options: EngineOptions,
        vocabulary: Vocabulary,
        cores: EngineCores,
        connectors: KvConnectors,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._options = options
        self._cores = cores
        self._connectors = connectors
        self._clock = clock
        self._started_wall_s = clock.wall()
        self.requests: deque[HttpExchange] = deque(maxlen=REQUEST_LOG_SIZE)
        self._generate = GenerateEndpoints(options, vocabulary, cores, connectors, clock, tasks)
        self._key_digest = _digest(options.api_key) if options.api_key else None
        other = OtherEndpoints(options, vocabulary, self._generate.params_reader, clock, cores.adapters)
        self._routes: dict[tuple[str, str], Handler] = {("POST", path): self._generate for path in SHAPES} | {
            ("POST", "/v1/messages/count_tokens"): other.count_tokens,
            ("POST", "/v1/embeddings"): other.embeddings,
            ("POST", "/v1/rerank"): other.rerank,
            ("POST", "/v1/score"): other.score,
            ("POST", "/tokenize"): other.tokenize,
            ("POST", "/detokenize"): other.detokenize,
            ("GET", "/v1/models"): other.models,
            ("GET", "/version"): other.version,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/load"): _serve_json(lambda: {"server_load": self._generate.in_flight}),
            ("GET", "/metrics"): self._metrics,
            ("GET", "/kv_event_sources"): _serve_json(cores.sources),
            ("POST", "/reset_prefix_cache"): self._reset,
            ("GET", "/emulate/last"): self._last,
            ("GET", "/emulate/state"): _serve_json(self._state),
            ("GET", "/emulate/faults"): _serve_json(lambda: cores.faults),
            ("POST", "/emulate/faults"): self._change_faults,
            ("POST", "/emulate/restart"): self._restart,
        }
        if options.runtime_loras:
            adapters = AdapterEndpoints(cores.adapters)
            self._routes["POST", "/v1/load_lora_adapter"] = adapters.load
            self._routes["POST", "/v1/unload_lora_adapter"] = adapters.unload

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send)
        try:
            await exchange.read()
            if not exchange.path.startswith("/emulate/"):
                self.requests.append(exchange)
                if self._cores.faults.freeze:
                    await exchange.wait_closed()
                    return
            await self._handle(exchange)
        except ClientLeft:
            return

    async def _handle(self, exchange: HttpExchange) -> None:
        if exchange.path.startswith(AUTHENTICATED_PATHS) and not self._is_authorized(exchange):
            await exchange.send_json({"error": "Unauthorized"}, 401)
            return
        try:
            await self._route(exchange)(exchange)
        except RequestRefused as refused:
            kind = type(refused).__name__ + "Error"
            await _send_error(exchange, refused.message, kind, refused.param, refused.status)
        except EngineFailed as failure:
            await _send_error(exchange, str(failure), "InternalServerError", None, 500)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # vLLM's schema answers 400, too
            if exchange.started:
                raise
            await _send_error(exchange, f"a field has the wrong type: {error}", "BadRequestError", None, 400)

    def _route(self, exchange: HttpExchange) -> Handler:
        handler = self._routes.get((exchange.method, exchange.path))
        if handler is not None:
            return handler
        if exchange.path.startswith("/v1/responses/"):
            if exchange.method == "GET":
                return _serve_json(lambda: self._generate.responses.get(exchange.path.rpartition("/")[2]))
            if exchange.path.endswith("/cancel"):
                return _serve_json(lambda: self._generate.cancel(exchange.path.split("/")[3]))
        raise NotFound("Not Found")

    def _is_authorized(self, exchange: HttpExchange) -> bool:
        if self._key_digest is None:
            return True
        scheme, _, key = exchange.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(_digest(key), self._key_digest)

    # -- endpoints of vLLM

    async def _health(self, exchange: HttpExchange) -> None:
        await exchange.send_body(b"", "text/plain", 503 if self._cores.faults.unhealthy else 200)

    async def _metrics(self, exchange: HttpExchange) -> None:
        gauges = [core.engine.gauges() for core in self._cores.all]
        body = render_metrics(self._options, gauges, self._clock.wall(), self._started_wall_s)
        await exchange.send_body(body, "text/plain; version=0.0.4; charset=utf-8")

    async def _reset(self, exchange: HttpExchange) -> None:
        """Answer 200 whether the reset worked or not, as vLLM does."""
        for core in self._cores.all:
            core.engine.reset_prefix_cache()
        await exchange.send_body(b"", "text/plain")

    # -- endpoints of the emulator

    async def _last(self, exchange: HttpExchange) -> None:
        path = parse_qs(exchange.query).get("path", [None])[0]
        await exchange.send_json([_describe_request(one) for one in self.requests if path in (None, one.path)])

    def _state(self) -> dict[str, object]:
        ranks = [core.engine.gauges()._asdict() for core in self._cores.all]
        return {"in_flight": self._generate.in_flight, "ranks": ranks}

    async def _change_faults(self, exchange: HttpExchange) -> None:
        try:
            faults = self._cores.faults.merge_json(exchange.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRequest(str(error)) from None
        self._cores.apply_faults(faults)
        await exchange.send_json(faults)

    async def _restart(self, exchange: HttpExchange) -> None:
        log.info("%s: restarting the engine core", self._options.name)
        self._cores.restart()
        self._connectors.restart()
        await exchange.send_json({})


def _serve_json(read: Callable[[], object]) -> Handler:
    return lambda exchange: exchange.send_json(read())


def _describe_request(exchange: HttpExchange) -> dict[str, object]:
    body = exchange.body.decode("utf-8", "replace")
    return {"method": exchange.method, "path": exchange.path, "headers": exchange.headers, "body": body}


async def _send_error(exchange: HttpExchange, message: str, kind: str, param: str | None, status: int) -> None:
    """Answer with vLLM's error shape."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    await exchange.send_json({"error": error}, status)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
