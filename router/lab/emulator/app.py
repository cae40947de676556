"""The ASGI application of one emulated engine: routes, authentication, cross-origin requests, and the shape of
errors.

Errors have the forms of a real engine (vLLM 0.32): `{"detail": ...}` from its web framework (unknown paths, wrong
methods with `Allow`, unreadable bodies), `{"error": ...}` from its schema and its own code, the latter in
Anthropic's form under `/v1/messages`. A path with a trailing slash is redirected; a WebSocket is rejected with 403
on every path.

Beside vLLM's endpoints the application has its own, which need no API key and are not affected by faults:

    GET  /emulate/last?path=P   the newest requests (to P) as they arrived, for tests
    GET  /emulate/state         the core's counters, per rank
    GET  /emulate/faults        the faults in force; POST changes the faults that its JSON object names
    POST /emulate/restart       the engine processes crash and restart with an empty cache
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
from router.lab.emulator.adapters import AdapterEndpoints
from router.lab.emulator.cors import CorsPolicy, is_preflight
from router.lab.emulator.engine_cores import EngineCores, EngineFailed
from router.lab.emulator.generate import SHAPES, GenerateEndpoints
from router.lab.emulator.http_server import ClientLeft, HttpExchange, Message, Receive, Send
from router.lab.emulator.kv_connectors import KvConnectors
from router.lab.emulator.metrics import render_metrics
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.other_endpoints import OtherEndpoints
from router.lab.emulator.request_params import CHAT, COMPLETIONS
from router.lab.emulator.request_schema import SchemaRefused, UnreadableBody
from router.lab.emulator.vocabulary import Vocabulary
from router.tasks import Tasks

log = logging.getLogger("warmroute.engine")

AUTHENTICATED_PATHS = ("/v1", "/v2", "/inference")
REQUEST_LOG_SIZE = 256  # requests stored for /emulate/last
Handler = Callable[[HttpExchange], Awaitable[None]]
UNREADABLE = "There was an error parsing the body"
AUDIO = ("/v1/audio/transcriptions", "/v1/audio/translations")


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
        self.requests: deque[HttpExchange] = deque(maxlen=REQUEST_LOG_SIZE)
        self._generate = GenerateEndpoints(options, vocabulary, cores, connectors, clock, tasks)
        self._key_digest = _digest(options.api_key) if options.api_key else None
        self._cors = CorsPolicy(options.allowed_origins)
        other = OtherEndpoints(options, vocabulary, self._generate.params_reader, clock, cores.adapters)
        self._routes = self._list_routes(options, cores, other)
        if options.runtime_loras:
            adapters = AdapterEndpoints(cores.adapters)
            self._routes["POST", "/v1/load_lora_adapter"] = adapters.load
            self._routes["POST", "/v1/unload_lora_adapter"] = adapters.unload

    def _list_routes(
        self, options: EngineOptions, cores: EngineCores, other: OtherEndpoints
    ) -> dict[tuple[str, str], Handler]:
        """Return the handlers by method and path."""
        return {("POST", path): self._generate for path in SHAPES} | {
            ("POST", "/v1/messages/count_tokens"): other.count_tokens,
            ("POST", "/v1/embeddings"): other.embeddings,
            **{("POST", path): other.rerank for path in ("/v1/rerank", "/rerank", "/v2/rerank")},
            ("POST", "/v1/score"): other.score,
            **{("POST", path): other.transcribe for path in AUDIO if options.transcribes},
            ("POST", "/tokenize"): other.tokenize,
            ("POST", CHAT + "/render"): other.render_chat,
            ("POST", COMPLETIONS + "/render"): other.render_completion,
            ("GET", "/is_sleeping"): self._is_sleeping,
            ("POST", "/detokenize"): other.detokenize,
            ("GET", "/v1/models"): other.models,
            ("GET", "/version"): other.version,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("POST", "/ping"): self._health,
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

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        exchange = HttpExchange(scope, receive, send)
        try:
            await exchange.read()
            if not exchange.path.startswith("/emulate/"):
                self.requests.append(exchange)
                if self._cores.faults.freeze or exchange.path.startswith(self._cores.faults.hang):
                    await exchange.wait_closed()
                    return
            await self._handle(exchange)
        except ClientLeft:
            return

    async def _handle(self, exchange: HttpExchange) -> None:
        if is_preflight(exchange.method, exchange.headers):
            answer = self._cors.preflight(exchange.headers)
            exchange.answer_headers = answer.headers
            await exchange.send_body(answer.body, "text/plain; charset=utf-8", answer.status)
            return
        if exchange.headers.get("upgrade", "").lower() == "websocket":
            exchange.answer_headers = [(b"connection", b"close")]
            await exchange.send_body(b"", "text/plain; charset=utf-8", 403)
            return
        exchange.answer_headers = self._cors.headers(exchange.headers.get("origin"))
        if exchange.path.startswith(AUTHENTICATED_PATHS) and not self._is_authorized(exchange):
            await exchange.send_json({"error": "Unauthorized"}, 401)
            return
        try:
            await self._route(exchange)(exchange)
        except SchemaRefused as refused:
            await exchange.send_json(_error(refused.message, "Bad Request", refused.param, 400), 400)
        except UnreadableBody:
            await exchange.send_json({"detail": UNREADABLE}, 400)
        except RequestRefused as refused:
            kind = "invalid_request_error" if refused.param == "response_id" else f"{type(refused).__name__}Error"
            await _send_error(exchange, refused.message, kind, refused.param, refused.status)
        except EngineFailed as failure:
            await _send_error(exchange, str(failure), "InternalServerError", None, 500)
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # vLLM's schema answers 400 as well
            if exchange.started:
                raise
            await _send_error(exchange, f"a field has the wrong type: {error}", "BadRequestError", None, 400)

    def _route(self, exchange: HttpExchange) -> Handler:
        handler = self._routes.get((exchange.method, exchange.path))
        if handler is not None:
            return handler
        path = exchange.path
        methods = sorted(method for method, known in self._routes if known == path)
        if path.startswith("/v1/responses/"):
            id, _, rest = path.removeprefix("/v1/responses/").partition("/")
            if not rest:
                methods = ["GET"]
                handler = _serve_json(lambda: self._generate.responses.get(id))
            elif rest == "cancel":
                methods = ["POST"]
                handler = _serve_json(lambda: self._generate.cancel(id))
        if handler is not None and exchange.method in methods:
            return handler
        return self._unrouted(methods)

    def _unrouted(self, methods: list[str]) -> Handler:
        """Return a handler that answers 405 for a path with other `methods`, 307 for a trailing slash, else 404."""

        async def answer(exchange: HttpExchange) -> None:
            if methods:
                exchange.answer_headers.append((b"allow", ", ".join(methods).encode()))
                await exchange.send_json({"detail": "Method Not Allowed"}, 405)
            elif exchange.path.endswith("/") and any(path == exchange.path[:-1] for _, path in self._routes):
                location = f"{exchange.scheme}://{exchange.headers.get('host', '')}{exchange.path[:-1]}"
                exchange.answer_headers.append((b"location", location.encode("latin-1")))
                await exchange.send_body(b"", None, 307)
            else:
                await exchange.send_json({"detail": "Not Found"}, 404)

        return answer

    def _is_authorized(self, exchange: HttpExchange) -> bool:
        if self._key_digest is None:
            return True
        scheme, _, key = exchange.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(_digest(key), self._key_digest)

    # -- endpoints of vLLM

    async def _health(self, exchange: HttpExchange) -> None:
        await exchange.send_body(b"", None, 503 if self._cores.faults.unhealthy else 200)

    async def _is_sleeping(self, exchange: HttpExchange) -> None:
        if not self._cores.faults.asleep:
            raise NotFound("Not Found")  # as vLLM outside development mode
        await exchange.send_json({"is_sleeping": True})

    async def _metrics(self, exchange: HttpExchange) -> None:
        gauges = [core.engine.gauges() for core in self._cores.all]
        body = render_metrics(self._options, gauges, self._clock.wall(), self._cores.started_wall_s)
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
    """Answer in the error shape of vLLM's own code; under `/v1/messages` in Anthropic's, with vLLM's types."""
    if exchange.path.startswith("/v1/messages"):
        error: dict[str, object] = {"type": "error", "error": {"type": kind, "message": message}}
    else:
        error = _error(message, kind, param, status)
    await exchange.send_json(error, status)


def _error(message: str, kind: str, param: str | None, status: int) -> dict[str, object]:
    return {"error": {"message": message, "type": kind, "param": param, "code": status}}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
