"""The ASGI application of one emulated engine: which path goes where, who may come in, and what errors look like.

Beside vLLM's own endpoints it has its own, which no key guards and no fault touches:

    GET  /emulate/last?path=P   the newest requests (to P), as they arrived: for tests to look at
    GET  /emulate/state         per rank, what the core counts
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
from router.testbed.emulator.engine_cores import EngineCores, EngineFailed
from router.testbed.emulator.generate import SHAPES, GenerateEndpoints
from router.testbed.emulator.http_exchange import ClientLeft, HttpExchange, Message, Receive, Send
from router.testbed.emulator.kv_connectors import KvConnectors
from router.testbed.emulator.metrics import render_metrics
from router.testbed.emulator.options import EngineOptions
from router.testbed.emulator.other_endpoints import OtherEndpoints
from router.testbed.emulator.vocabulary import Vocabulary

log = logging.getLogger("warmroute.engine")

AUTHENTICATED_PATHS = ("/v1", "/v2", "/inference")
REQUEST_LOG_SIZE = 256  # requests remembered for /emulate/last
Handler = Callable[[HttpExchange], Awaitable[None]]


class EmulatorApp:
    """A plain ASGI callable, raw because the benches measure the router, not its engines."""

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
        self.seen: deque[HttpExchange] = deque(maxlen=REQUEST_LOG_SIZE)
        self._generating = GenerateEndpoints(options, vocabulary, cores, connectors, clock, tasks)
        self._key = _digest(options.api_key) if options.api_key else None
        small = OtherEndpoints(options, vocabulary, self._generating.params_reader, clock)
        self._routes: dict[tuple[str, str], Handler] = {("POST", path): self._generating for path in SHAPES} | {
            ("POST", "/v1/messages/count_tokens"): small.count_tokens,
            ("POST", "/v1/embeddings"): small.embeddings,
            ("POST", "/v1/rerank"): small.rerank,
            ("POST", "/v1/score"): small.score,
            ("POST", "/tokenize"): small.tokenize,
            ("POST", "/detokenize"): small.detokenize,
            ("GET", "/v1/models"): small.models,
            ("GET", "/version"): small.version,
            ("GET", "/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/load"): self._load,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/kv_event_sources"): self._sources,
            ("POST", "/reset_prefix_cache"): self._reset,
            ("GET", "/emulate/last"): self._last,
            ("GET", "/emulate/state"): self._state,
            ("GET", "/emulate/faults"): self._tell_faults,
            ("POST", "/emulate/faults"): self._change_faults,
            ("POST", "/emulate/restart"): self._restart,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        call = HttpExchange(scope, receive, send)
        try:
            await call.read()
            ours = call.path.startswith("/emulate/")
            if not ours:
                self.seen.append(call)
            if self._cores.faults.freeze and not ours:
                await call.gone()
                return
            await self._handle(call)
        except ClientLeft:
            return

    async def _handle(self, call: HttpExchange) -> None:
        if self._key is not None and call.path.startswith(AUTHENTICATED_PATHS) and not self._knows_key(call):
            await call.answer({"error": "Unauthorized"}, 401)
            return
        try:
            await self._route(call)(call)
        except RequestRefused as refused:
            await _answer_error(call, refused.message, type(refused).__name__ + "Error", refused.param, refused.status)
        except EngineFailed as broken:
            await _answer_error(call, str(broken), "InternalServerError", None, 500)
        except (AttributeError, KeyError, TypeError, ValueError) as wrong:  # an odd body; vLLM's schema says 400, too
            if call.started:
                raise
            await _answer_error(call, f"a field has the wrong type: {wrong}", "BadRequestError", None, 400)

    def _route(self, call: HttpExchange) -> Handler:
        handler = self._routes.get((call.method, call.path))
        if handler is not None:
            return handler
        if call.path.startswith("/v1/responses/"):
            if call.method == "GET":
                return self._retrieve
            if call.path.endswith("/cancel"):
                return self._cancel
        raise NotFound("Not Found")

    def _knows_key(self, call: HttpExchange) -> bool:
        scheme, _, key = call.headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and hmac.compare_digest(_digest(key), self._key or b"")

    # -- vLLM's

    async def _retrieve(self, call: HttpExchange) -> None:
        await call.answer(self._generating.kept.get(call.path.rpartition("/")[2]))

    async def _cancel(self, call: HttpExchange) -> None:
        await call.answer(self._generating.cancel(call.path.split("/")[3]))

    async def _health(self, call: HttpExchange) -> None:
        await call.send(b"", "text/plain", 503 if self._cores.faults.unhealthy else 200)

    async def _load(self, call: HttpExchange) -> None:
        await call.answer({"server_load": self._generating.in_flight})

    async def _metrics(self, call: HttpExchange) -> None:
        gauges = [core.engine.gauges() for core in self._cores.all]
        body = render_metrics(self._options, gauges, self._clock.wall())
        await call.send(body, "text/plain; version=0.0.4; charset=utf-8")

    async def _sources(self, call: HttpExchange) -> None:
        await call.answer(self._cores.sources())

    async def _reset(self, call: HttpExchange) -> None:
        """200 whether it worked or not, as on vLLM."""
        for core in self._cores.all:
            core.engine.reset_prefix_cache()
        await call.send(b"", "text/plain")

    # -- our own

    async def _last(self, call: HttpExchange) -> None:
        path = parse_qs(call.query).get("path", [None])[0]
        await call.answer([_describe_request(one) for one in self.seen if path in (None, one.path)])

    async def _state(self, call: HttpExchange) -> None:
        ranks = [core.engine.gauges()._asdict() for core in self._cores.all]
        await call.answer({"in_flight": self._generating.in_flight, "ranks": ranks})

    async def _tell_faults(self, call: HttpExchange) -> None:
        await call.answer(self._cores.faults)

    async def _change_faults(self, call: HttpExchange) -> None:
        try:
            faults = self._cores.faults.changed(call.body)
        except (msgspec.DecodeError, UnicodeDecodeError) as wrong:
            raise BadRequest(str(wrong)) from None
        self._cores.disturb(faults)
        await call.answer(faults)

    async def _restart(self, call: HttpExchange) -> None:
        log.info("%s: the engine core restarts", self._options.name)
        self._cores.restart()
        self._connectors.restart()
        await call.answer({})


def _describe_request(call: HttpExchange) -> dict[str, object]:
    body = call.body.decode("utf-8", "replace")
    return {"method": call.method, "path": call.path, "headers": call.headers, "body": body}


async def _answer_error(call: HttpExchange, message: str, kind: str, param: str | None, status: int) -> None:
    """vLLM's error shape."""
    await call.answer({"error": {"message": message, "type": kind, "param": param, "code": status}}, status)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
