"""The public API: an allow-list of endpoints, API keys, and the health and metrics endpoints on the same port.

An engine serves its administration (LoRA loading, sleep, cache resets) beside the OpenAI paths, so what is not listed
here or in `edge.extra_endpoints` is 404. The four prompt endpoints are routed by cache, the others by load; paths with
a response id go to the target that made it. Every `RequestRefused` that reaches this file becomes one answer in the
client's own dialect.

`/health` says that the process answers and nothing more, so that a supervisor does not restart a router whose engines
are down. `/ready` says whether a load balancer should send requests here.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple

import msgspec
from fastapi import FastAPI, Header, Response
from fastapi.responses import JSONResponse
from starlette.types import ASGIApp

from router.errors import NotFound, RequestRefused, TooBusy, Unauthorized, quote_name
from router.prompt.prompt import Endpoint
from router.proxy.asgi import AsgiHandler
from router.proxy.call import ClientDisconnected, ClientRequest
from router.proxy.client_exchange import ClientExchange
from router.request.error_body import ErrorBody, encode_error, install_error_handlers
from router.request.route import route, route_stored
from router.request.services import Services
from router.telemetry.access_log import log_unrecorded
from router.telemetry.metrics.exposition import CONTENT_TYPES, PageForm, choose_form
from router.telemetry.metrics.prometheus import OTHER, REASONS
from router.telemetry.tracing.spans import RefusedRequest
from router.tenants.directory import TenantDirectory

CACHE_ROUTED = {endpoint.value for endpoint in Endpoint if endpoint is not Endpoint.OTHER}
LOAD_ROUTED = frozenset(
    {"/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize", "/detokenize"}
)
OPS = frozenset({"/health", "/ready", "/metrics"})
STORED_RESPONSE = re.compile(r"/v1/responses/([A-Za-z0-9_\-]{1,128})(/cancel)?")


class PublicApi:
    """Answers exchanges on the public port. `tenants` `None`: nobody has to say who it is. `ops` is what answers
    `OPS`.
    """

    def __init__(self, services: Services, ops: ASGIApp, tenants: TenantDirectory | None) -> None:
        self._requests = RequestApi(services, tenants)
        self._ops = AsgiHandler(ops)

    async def answer(self, exchange: ClientExchange) -> None:
        await (self._ops if exchange.path in OPS else self._requests).answer(exchange)


class RequestApi:
    """Answers the requests of clients, whoever carries them out. `tenants` as for `PublicApi`; with `open_paths` every
    other path is routed by load instead of being refused.
    """

    def __init__(self, services: Services, tenants: TenantDirectory | None, *, open_paths: bool = False) -> None:
        self._services = services
        self._open_paths = open_paths
        self._tenants = tenants
        extra = {(e.method, e.path) for e in services.config.edge.extra_endpoints}
        self._routed = {("POST", path) for path in CACHE_ROUTED | LOAD_ROUTED} | extra

    async def answer(self, call: ClientRequest) -> None:
        arrived_s = self._services.clock.now()
        try:
            with call:
                await self._dispatch(call)
        except RequestRefused as refusal:
            if not call.recorded:
                self._services.metrics.on_refusal(self._label(call), refusal)
                self._log_unrecorded(call, refusal)
                self._trace_refusal(call, refusal, arrived_s)
            if not call.started:
                call.answer(*self.encode_refusal(refusal, call.path))
        except ClientDisconnected:
            if not call.recorded:
                self._services.metrics.on_disconnect(self._label(call))
                self._log_unrecorded(call, None)

    def _log_unrecorded(self, call: ClientRequest, refusal: RequestRefused | None) -> None:
        if self._services.config.log.access:
            log_unrecorded(call.path, call.sender, refusal)

    def _trace_refusal(self, call: ClientRequest, refusal: RequestRefused, arrived_s: float) -> None:
        """Export a span of a request that was turned away, but for those that are the client's mistake."""
        if self._services.tracing is None or (refusal.status < 500 and not isinstance(refusal, TooBusy)):
            return
        now_s, clock = self._services.clock.wall(), self._services.clock
        reason = refusal.code or REASONS.get(type(refusal), OTHER)
        started_s = now_s - (clock.now() - arrived_s)
        request = RefusedRequest(self._label(call), refusal.status, reason, started_s, now_s)
        self._services.tracing.refuse(call.fields, request)

    def encode_refusal(self, refusal: RequestRefused, path: str) -> ErrorBody:
        """Return the answer to a refused request, in the client's dialect."""
        return encode_error(refusal, path)

    def _label(self, call: ClientRequest) -> str:
        """Return the path as a metric's label."""
        return call.path if (call.method, call.path) in self._routed else "other"

    async def _dispatch(self, call: ClientRequest) -> None:
        if self._tenants is not None:
            now_wall_s = self._services.clock.wall()
            call.tenant = self._tenants.identify(call.fields, trusted=call.proxied, now_wall_s=now_wall_s)
        if (call.method, call.path) in self._routed:
            await route(call, self._services)
        elif call.method == "GET" and call.path == "/v1/models":
            self._list_models(call)
        elif (found := STORED_RESPONSE.fullmatch(call.path)) and call.method == ("POST" if found[2] else "GET"):
            await route_stored(call, found[1], self._services)
        elif self._open_paths:
            await route(call, self._services)
        else:
            raise NotFound(f"{call.method} {quote_name(call.path)} is not served here", code="unknown_path")

    def _list_models(self, call: ClientRequest) -> None:
        """Answer with the model cards that the tenant may use, in the form of an engine's own, dated now as there."""
        common = {"object": "model", "created": int(self._services.clock.wall()), "owned_by": "vllm"}
        models = self._services.scheduler.fleet.models()
        if self._services.adapters is not None:
            models = self._services.adapters.add_cards(models)
        if self._services.models is not None:
            models = self._services.models.aliases.add_cards(models)
        if call.tenant is not None:
            models = [card for card in models if call.tenant.service_class.allows(card.id)]
        body = {"object": "list", "data": [common | card._asdict() for card in models]}
        call.answer(200, [(b"content-type", b"application/json")], msgspec.json.encode(body))


class MetricsAccess(NamedTuple):
    """The metrics page, and the sha256 (hex) of the bearer token that it takes; `None`: none."""

    scrape: Callable[[PageForm], Awaitable[bytes]]
    token_hash: str | None = None
    has_exemplars: bool = False  # so that OpenMetrics, which costs more to render, is worth it


def ops_app(why_not_ready: Callable[[], str | None], metrics: MetricsAccess | None) -> FastAPI:
    """Return the application behind `OPS`. `why_not_ready` returns `None` when the router is started, not stopping, and
    has an engine to send to; `metrics` `None`: they are on a listener of their own.
    """
    app = _app() if metrics is None else metrics_app(metrics)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        reason = why_not_ready()
        if reason is not None:
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        return JSONResponse({"status": "ready"})

    return app


def metrics_app(access: MetricsAccess) -> FastAPI:
    """Return an application that serves the metrics and nothing else."""
    app = _app()

    @app.get("/metrics")
    async def metrics(authorization: Annotated[str, Header()] = "", accept: Annotated[str, Header()] = "") -> Response:
        scheme, _, token = authorization.partition(" ")
        digest = hashlib.sha256(token.strip().encode()).hexdigest()
        known = scheme.lower() == "bearer" and hmac.compare_digest(digest, (access.token_hash or "").lower())
        if access.token_hash is not None and not known:
            raise Unauthorized("the token of metrics.token_hash is needed: Authorization: Bearer TOKEN")
        form = choose_form(accept) if access.has_exemplars else "text"
        return Response(await access.scrape(form), media_type=CONTENT_TYPES[form])

    return app


def _app() -> FastAPI:
    app = FastAPI(openapi_url=None)
    install_error_handlers(app)
    return app
