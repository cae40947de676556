"""The public API: an allow-list of endpoints, API keys, and the health and metrics endpoints on the same port.

The list is in `public_paths.py`. A path that is neither on this list nor in `edge.extra_endpoints` gets 404; a
wrong method gets 405. Every `RequestRefused` that reaches this file becomes one answer in the client's own dialect,
and so does an unexpected exception. Answers that the router gives by itself are counted and logged here, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine, Sequence
from typing import Any

import msgspec
from mypy_extensions import mypyc_attr
from starlette.types import ASGIApp

from router.errors import MethodNotAllowed, NotFound, RequestRefused, UpgradeRequired, quote_name
from router.fleet.engine_facts import ModelCard
from router.proxy.asgi import AsgiHandler
from router.proxy.call import ClientDisconnected, ClientRequest, Headers
from router.proxy.client_exchange import ClientExchange
from router.request.cross_origin import ORIGIN, CrossOrigin, describe_rules
from router.request.error_body import ErrorBody, describe_crash, encode_error, speaks_anthropic
from router.request.public_paths import OPS, FoundPath, PathTable
from router.request.route import route, route_stored
from router.request.services import Services
from router.telemetry.access_log import log_disconnect, log_own_answer, log_refused
from router.telemetry.metrics.label_values import OTHER

JSON: Headers = [(b"content-type", b"application/json")]


class PublicApi:
    """Answers exchanges on the public port: `requests` answers clients' requests, `ops` the paths in `OPS`."""

    def __init__(self, requests: RequestApi, ops: ASGIApp) -> None:
        self._requests = requests
        self._ops = AsgiHandler(ops)

    def answer(self, exchange: ClientExchange) -> Coroutine[Any, Any, None]:
        if exchange.path in OPS:
            return self._ops.answer(exchange)
        return self._requests.answer(exchange)

    def on_unfit(self, status: int) -> None:
        self._requests.on_unfit(status)

    def on_crash(self, exchange: ClientExchange) -> ErrorBody:
        return self._requests.on_crash(exchange)


@mypyc_attr(allow_interpreted_subclasses=True)
class RequestApi:
    """Answers the requests of clients on any data path. With `open_paths`, every path that is not listed is routed
    by load instead of being rejected.
    """

    def __init__(self, services: Services, *, open_paths: bool = False) -> None:
        edge = services.config.edge
        self._cross_origin = CrossOrigin(edge.cors_origins)
        self._services = services
        self._open_paths = open_paths
        extra = [(e.method, e.path) for e in edge.extra_endpoints]
        self._paths = PathTable(extra)
        self._routed = {*self._paths.forwarded(), *extra}

    async def answer(self, call: ClientRequest) -> None:
        arrived_s = self._services.clock.now()
        try:
            with call:
                if ORIGIN in call.fields and self._cross_origin.open(call):
                    self._answer(call, describe_rules(call.fields), b"")
                    return
                if (identify := self._services.identify) is not None:
                    call.tenant = identify(call)
                routed = self._find_route(call)
                if routed is not None:
                    await routed
        except RequestRefused as refusal:
            if not call.recorded:
                self._count_refusal(call, refusal, arrived_s)
            if not call.started:
                call.answer(*self.encode_refusal(refusal, call))
        except ClientDisconnected:
            if not call.recorded:
                self._services.metrics.on_disconnect(self._label(call))
                if self._services.config.log.access:
                    log_disconnect(call.path, call.sender)

    def on_unfit(self, status: int) -> None:
        """Count a request that was not valid HTTP, or too slow."""
        self._services.metrics.on_unfit(status)

    def on_crash(self, call: ClientRequest) -> ErrorBody:
        """Return the answer to `call` after an unexpected exception, and count the crash."""
        crash = describe_crash()
        if call.recorded:
            self._services.metrics.on_crash(self._label(call))
        else:
            self._count_refusal(call, crash, self._services.clock.now())
        return self.encode_refusal(crash, call)

    def _find_route(self, call: ClientRequest) -> Awaitable[None] | None:
        """Return the coroutine that answers `call`; None if `call` is already answered. Raises `RequestRefused`."""
        method, path = call.method, call.path
        if (method, path) in self._routed:
            return self.route(call)
        found = self._paths.find(path)
        if found is not None and method in found.entry.methods:
            if found.entry.placed == "response":
                return self.route_stored(call, found.value)
            self._answer_models(call, found)
            return None
        if self._open_paths:
            return self.route(call)
        if found is None:
            raise NotFound(f"{method} {quote_name(path)} is not served here", code="unknown_path")
        methods = found.entry.methods
        if method == "GET" and b"sec-websocket-key" in call.fields and "POST" in methods:  # `Upgrade` is for one hop
            raise UpgradeRequired(f"{quote_name(path)} does not speak WebSocket: use POST", code="upgrade_required")
        raise MethodNotAllowed(f"{quote_name(path)} takes {' and '.join(methods)}, not {quote_name(method)}", methods)

    def route(self, call: ClientRequest) -> Awaitable[None]:
        return route(call, self._services)

    def route_stored(self, call: ClientRequest, response_id: str) -> Awaitable[None]:
        return route_stored(call, response_id, self._services)

    def _count_refusal(self, call: ClientRequest, refusal: RequestRefused, arrived_s: float) -> None:
        """Count and log a request that has no record."""
        self._services.metrics.on_refusal(self._label(call), refusal)
        if self._services.config.log.access:
            log_refused(call.path, call.sender, refusal)
        for sink in self._services.path.refusals:
            sink(call, refusal, self._label(call), arrived_s)

    def encode_refusal(self, refusal: RequestRefused, call: ClientRequest) -> ErrorBody:
        """Return the answer to a rejected request, in the client's dialect."""
        return encode_error(refusal, anthropic=speaks_anthropic(call.path, call.fields))

    def _answer(self, call: ClientRequest, headers: Headers, body: bytes) -> None:
        """Answer a request that needs no engine. Such a request has no record, so it is counted and logged here."""
        self._services.metrics.on_own_answer(self._label(call))
        if self._services.config.log.access:
            log_own_answer(call.path, call.sender)
        call.answer(200, headers, body)

    def _label(self, call: ClientRequest) -> str:
        """Return the path as a metric's label."""
        if (call.method, call.path) in self._routed:
            return call.path
        found = self._paths.find(call.path)
        return OTHER if found is None else found.entry.path

    def _answer_models(self, call: ClientRequest, found: FoundPath) -> None:
        """Answer with the model cards that the tenant may use, or with one of them, in an engine's format and dated
        now, as engines do. Raises `NotFound`.
        """
        common = {"object": "model", "created": int(self._services.clock.wall()), "owned_by": "vllm"}
        models: Sequence[ModelCard] = self._services.scheduler.fleet.models()
        for change in self._services.path.cards:
            models = change(models, call)
        cards = [common | card._asdict() for card in models]
        body: dict[str, Any] = {"object": "list", "data": cards}
        if found.value:
            body = next((card for card in cards if card["id"] == found.value), {})
            if not body:
                name = quote_name(found.value)
                raise NotFound(f"the model `{name}` does not exist", param="model", code="model_not_found")
        self._answer(call, JSON, msgspec.json.encode(body))
