"""The public API: an allow-list of endpoints, API keys, and the health and metrics endpoints on the same port.

An engine serves its administration (LoRA loading, sleep, cache resets) beside the OpenAI paths, so what is not listed
here or in `edge.extra_endpoints` is 404. The four prompt endpoints are routed by cache, the others by load; paths with
a response id go to the target that made it. Every `RequestRefused` that reaches this file becomes one answer in the
client's own dialect.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Coroutine
from typing import Any, Final

import msgspec
from mypy_extensions import mypyc_attr
from starlette.types import ASGIApp

from router.errors import NotFound, RequestRefused, TooBusy, quote_name
from router.prompt.prompt import Endpoint
from router.proxy.asgi import AsgiHandler
from router.proxy.call import ClientDisconnected, ClientRequest
from router.proxy.client_exchange import ClientExchange
from router.request.error_body import ErrorBody, encode_error
from router.request.route import route, route_stored
from router.request.services import Services
from router.telemetry.access_log import log_unrecorded
from router.telemetry.metrics.label_values import OTHER
from router.telemetry.metrics.prometheus import REASONS
from router.telemetry.tracing.spans import RefusedRequest
from router.tenants.directory import TenantDirectory

CACHE_ROUTED = {endpoint.value for endpoint in Endpoint if endpoint is not Endpoint.OTHER}
LOAD_ROUTED = frozenset(
    {"/v1/messages/count_tokens", "/v1/embeddings", "/v1/rerank", "/v1/score", "/tokenize", "/detokenize"}
)
OPS: Final = frozenset({"/health", "/ready", "/metrics"})
STORED_RESPONSE: Final = re.compile(r"/v1/responses/([A-Za-z0-9_\-]{1,128})(/cancel)?")


class PublicApi:
    """Answers exchanges on the public port: `requests` those of clients, `ops` what is in `OPS`."""

    def __init__(self, requests: RequestApi, ops: ASGIApp) -> None:
        self._requests = requests
        self._ops = AsgiHandler(ops)

    def answer(self, exchange: ClientExchange) -> Coroutine[Any, Any, None]:
        if exchange.path in OPS:
            return self._ops.answer(exchange)
        return self._requests.answer(exchange)


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestApi:
    """Answers the requests of clients, whoever carries them out. `tenants` `None`: nobody has to say who it is. With
    `open_paths` every path that is not listed is routed by load instead of being refused.
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
                if self._tenants is not None:
                    now_wall_s = self._services.clock.wall()
                    call.tenant = self._tenants.identify(call.fields, trusted=call.proxied, now_wall_s=now_wall_s)
                routed = self._find_route(call)
                if routed is not None:
                    await routed
        except RequestRefused as refusal:
            if not call.recorded:
                self._services.metrics.on_refusal(self._label(call), refusal)
                self._services.meter.on_refusal(call.tenant, refusal)
                self._log_unrecorded(call, refusal)
                self._trace_refusal(call, refusal, arrived_s)
            if not call.started:
                call.answer(*self.encode_refusal(refusal, call.path))
        except ClientDisconnected:
            if not call.recorded:
                self._services.metrics.on_disconnect(self._label(call))
                self._log_unrecorded(call, None)

    def _find_route(self, call: ClientRequest) -> Awaitable[None] | None:
        """Return what answers `call` when it is awaited; None when it is answered already. Raises `NotFound`."""
        method, path = call.method, call.path
        if (method, path) in self._routed:
            return self.route(call)
        if method == "GET" and path == "/v1/models":
            self._list_models(call)
            return None
        if (found := STORED_RESPONSE.fullmatch(path)) and method == ("POST" if found[2] else "GET"):
            return self.route_stored(call, found[1])
        if self._open_paths:
            return self.route(call)
        raise NotFound(f"{method} {quote_name(path)} is not served here", code="unknown_path")

    def route(self, call: ClientRequest) -> Awaitable[None]:
        return route(call, self._services)

    def route_stored(self, call: ClientRequest, response_id: str) -> Awaitable[None]:
        return route_stored(call, response_id, self._services)

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
