"""The public door: it answers exchanges as they are, by a list of what may pass.

An engine serves its administration (LoRA loading, sleep, cache resets) beside the OpenAI paths, so this is an
allow-list: what is not named here, or in `edge.extra_endpoints`, is 404. The four prompt endpoints go by cache, the
others by load; paths with a response id go to the target that made it. Health and metrics are FastAPI's (`ops.py`),
behind the same port. Every `RequestRefused` that reaches this file becomes one answer in the client's own dialect.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping

import msgspec
from starlette.types import ASGIApp

from router.errors import NotFound, RequestRefused, Unauthorized
from router.prompt.prompt import Endpoint
from router.proxy.asgi import AsgiHandler
from router.proxy.call import ClientDisconnected, ClientRequest
from router.proxy.client_exchange import ClientExchange
from router.request.error_body import encode_error
from router.request.route import Services, route, route_stored

CACHE_ROUTED = {endpoint.value for endpoint in Endpoint if endpoint is not Endpoint.OTHER}
LOAD_ROUTED = frozenset(
    {
        "/v1/messages/count_tokens",
        "/v1/embeddings",
        "/v1/rerank",
        "/v1/score",
        "/tokenize",
        "/detokenize",
    }
)
OPS = frozenset({"/health", "/ready", "/metrics"})
STORED_RESPONSE = re.compile(r"/v1/responses/([A-Za-z0-9_\-]{1,128})(/cancel)?")


class PublicApi:
    """`clients` maps the sha256 (hex) of an API key to its owner's name; None: everybody may come in."""

    def __init__(self, rooms: Services, ops: ASGIApp, clients: Mapping[str, str] | None) -> None:
        self._rooms = rooms
        self._ops = AsgiHandler(ops)
        self._clients = clients
        extra = {(e.method, e.path) for e in rooms.config.edge.extra_endpoints}
        self._routed = {("POST", path) for path in CACHE_ROUTED | LOAD_ROUTED} | extra

    async def answer(self, exchange: ClientExchange) -> None:
        if exchange.path in OPS:
            await self._ops.answer(exchange)
            return
        try:
            with exchange:
                await self._enter(exchange)
        except RequestRefused as refusal:
            if not exchange.recorded:
                self._rooms.metrics.refused(self._name(exchange), refusal)
            if not exchange.started:
                exchange.answer(*encode_error(refusal, exchange.path))
        except ClientDisconnected:
            if not exchange.recorded:
                self._rooms.metrics.gone(self._name(exchange))

    def _name(self, call: ClientRequest) -> str:
        """The path as a metric's label."""
        return call.path if (call.method, call.path) in self._routed else "other"

    async def _enter(self, call: ClientRequest) -> None:
        self._check_key(call)
        if (call.method, call.path) in self._routed:
            await route(call, self._rooms)
        elif call.method == "GET" and call.path == "/v1/models":
            self._models(call)
        elif (found := STORED_RESPONSE.fullmatch(call.path)) and call.method == ("POST" if found[2] else "GET"):
            await route_stored(call, found[1], self._rooms)
        else:
            raise NotFound(f"{call.method} {call.path} is not served here", code="unknown_path")

    def _models(self, call: ClientRequest) -> None:
        """The fleet's cards as an engine shows its own, dated as it does: now."""
        told = {"object": "model", "created": int(self._rooms.clock.wall()), "owned_by": "vllm"}
        body = {"object": "list", "data": [told | card._asdict() for card in self._rooms.core.fleet.models()]}
        call.answer(200, [(b"content-type", b"application/json")], msgspec.json.encode(body))

    def _check_key(self, call: ClientRequest) -> None:
        """Looking a sha256 up in a set leaks nothing about the key: timing tells of hashes only."""
        if self._clients is None:
            return
        given = call.header(b"authorization") or b""
        key = given[7:] if given[:7].lower() == b"bearer " else call.header(b"x-api-key") or b""
        call.client = self._clients.get(hashlib.sha256(key.strip()).hexdigest())
        if call.client is None:
            raise Unauthorized(
                "a valid API key is needed: Authorization: Bearer KEY, or x-api-key", code="invalid_api_key"
            )
