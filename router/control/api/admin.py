"""The admin API, on its own listener: instances, records, workers, draining, and who may use it.

With `admin.tokens`, a caller needs a token with the right for the endpoint. Without any, everyone who reaches the
socket is allowed, so the configuration requires a loopback address; then browsers are the danger. A page of another
site can resolve its name to 127.0.0.1 (DNS rebinding), so the Host header must be a loopback name, and any page can
send a blind POST, so requests that a browser marks as cross-site are refused.

Status and draining go through `Status`, policies through `Control` (`policies.py`), and their answers are plain
JSON types or JSON: this module knows nothing of the parts behind them. Lists that grow with the fleet or the
traffic are encoded without FastAPI's validation, which takes ten times as long on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

import msgspec
from fastapi import Depends, FastAPI, Path, Request, Response
from pydantic import BaseModel
from starlette.routing import Match

from router.config.sections.listeners import AdminTokenConfig, is_loopback
from router.control.api.live import add_live_routes
from router.control.api.policies import AS_YAML, ErrorDescriptions, YamlText, add_policy_routes
from router.control.api.records import JSON, add_record_routes
from router.control.api.shapes import OpenShape, describe_errors
from router.control.control import Control
from router.control.explain import Explain
from router.control.live.feed import LiveFeed
from router.control.status import Status
from router.errors import Forbidden, NotFound, RequestRefused, Unauthorized, quote_name
from router.request.admin_tokens import AdminTokens
from router.request.error_body import encode_error, install_error_handlers
from router.request.query_parameters import refuse_unknown_parameters

log = logging.getLogger("warmroute.admin")

Right = Literal["read", "write"]
ANYBODY = "anybody"  # name of the caller when no token is required
OWN_SITE = frozenset({"same-origin", "none"})  # values of Sec-Fetch-Site; none: typed into the address bar


class SilentFaultShape(OpenShape):
    check: str
    what: str
    why: str
    change: str
    needed: bool


class InstanceShape(OpenShape):
    id: str
    url: str
    state: str
    silent_faults: list[SilentFaultShape]


class PoolShape(OpenShape):
    configured: bool


class InstanceList(BaseModel):
    instances: list[InstanceShape]
    discovery: dict[str, str | None]
    silent_faults: list[SilentFaultShape]


class WorkerShape(OpenShape):
    number: int
    pid: int | None
    up: bool


class WorkerList(BaseModel):
    workers: list[WorkerShape]


class ReplicaShape(OpenShape):
    address: str | None
    run: str | None
    own: bool
    up: bool


class ReplicaList(BaseModel):
    replicas: list[ReplicaShape]


class DrainAnswer(BaseModel):
    id: str
    draining: bool


class CacheForgottenAnswer(BaseModel):
    id: str


UNKNOWN = describe_errors(_400="an unknown query parameter")
NO_ENTRY = describe_errors(_401="no valid token", _403="not allowed")
INVALID = describe_errors(_422="an invalid parameter")
NOT_THERE = describe_errors(_404="no such thing")
DESCRIBED = ErrorDescriptions(
    not_there=NOT_THERE,
    not_now=describe_errors(_409="not possible in the present state"),
    text=describe_errors(_400="the body ended early", _413="the body is too large"),
    json=describe_errors(_400="the body ended early", _413="the body is too large") | NOT_THERE,
)

Identifier = Annotated[str, Path(min_length=1, max_length=200)]


def admin_app(
    status: Status, control: Control, explainer: Explain, feed: LiveFeed, tokens: Sequence[AdminTokenConfig]
) -> FastAPI:
    """Return the application of the admin listener. Without `tokens` it is open, and must be bound to loopback
    only.
    """
    app = FastAPI(
        title="Warmroute admin",
        openapi_url="/admin/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=UNKNOWN | NO_ENTRY | INVALID,
        dependencies=[Depends(refuse_unknown_parameters)],
    )
    install_error_handlers(app)
    guard = AdminGuard(tokens)
    read, write = Depends(guard.require("read")), Depends(guard.require("write"))
    _add_status_routes(app, status, [read])
    _add_instance_routes(app, status, [write])
    add_record_routes(app, status, explainer, [read])
    add_policy_routes(app, control, read, write, DESCRIBED)
    for feature in status.features.values():
        feature.add_routes(app, [read], [write])
    add_live_routes(app, feed, [read], guard.rights, NOT_THERE)
    _explain_wrong_requests(app)
    return app


def _explain_wrong_requests(app: FastAPI) -> None:
    """Answer an unknown path with what may be missing, and a wrong method with all methods of its path: Starlette
    lists those of the first route only.
    """

    async def wrong_path(request: Request, error: Exception) -> Response:
        named = f"{request.method} {quote_name(request.url.path)}"
        elsewhere = "those of a feature are there where it is configured, those of clients at `listen.port`"
        refusal = NotFound(f"{named}: no such endpoint of the admin API; {elsewhere}", code="unknown_endpoint")
        return Response(encode_error(refusal).body, 404, media_type=JSON)

    async def wrong_method(request: Request, error: Exception) -> Response:
        refusal = RequestRefused(f"{request.method} {quote_name(request.url.path)}: method not allowed")
        refusal.status, refusal.kind = 405, "invalid_request_error"
        answer = encode_error(refusal)
        found = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
        allowed = sorted({method for route in found for method in getattr(route, "methods", None) or ()})
        return Response(answer.body, 405, {"allow": ", ".join(allowed), "content-type": "application/json"})

    app.add_exception_handler(404, wrong_path)
    app.add_exception_handler(405, wrong_method)


def _add_status_routes(app: FastAPI, status: Status, read: list[Any]) -> None:
    @app.get("/admin/instances", dependencies=read, response_model=InstanceList)
    async def instances() -> Response:
        """Return state, load, index size, stream health and tokenizer of each instance, and by source of instances
        why its list may be out of date. `silent_faults`, of each instance and of the fleet, fail no request and cost
        hits; `needed` is whether a policy in use reads caches.
        """
        found = {
            "instances": status.describe_instances(),
            "discovery": status.describe_discovery(),
            "silent_faults": status.describe_silent_faults(),
        }
        return Response(msgspec.json.encode(found), media_type=JSON)

    @app.get("/admin/workers", dependencies=read)
    async def workers() -> WorkerList:
        """Return the processes that answer requests: pid, run (the start of its records' ids), policies in force,
        and which one is on duty.
        """
        return WorkerList.model_validate({"workers": status.describe_workers()})

    @app.get("/admin/replicas", dependencies=read)
    async def replicas() -> ReplicaList:
        """Return the routers that share load, sessions and drains with this one: by configured address the run that
        answers there (the start of its records' ids), whether frames arrive both ways, lag and bytes. Empty without
        `replicas`.
        """
        return ReplicaList.model_validate({"replicas": [one._asdict() for one in status.describe_replicas()]})

    @app.get("/admin/config", dependencies=read, response_model=None, responses=AS_YAML)
    async def config() -> YamlText:
        """Return the configuration in force as YAML with every default: that of the start, with the policies,
        experiment and admission in force now. It has no secrets.
        """
        return YamlText(await asyncio.to_thread(status.dump_config))

    @app.get("/admin/pool", dependencies=read)
    async def pool() -> PoolShape:
        """Return which master leads, how queries ended, and by model how blocks are named and if that is proved."""
        description = status.describe_feature("pool")
        return PoolShape.model_validate({"configured": description is not None, **(description or {})})


def _add_instance_routes(app: FastAPI, status: Status, write: list[Any]) -> None:
    @app.post("/admin/instances/{id}/drain", dependencies=write, responses=NOT_THERE)
    async def drain(id: Identifier) -> DrainAnswer:
        """Drain an instance: it finishes its requests and gets no new ones. With `preload.drain` it is handed off
        before, and a second call drains it at once.
        """
        return _set_draining(status, id, True)

    @app.post("/admin/instances/{id}/undrain", dependencies=write, responses=NOT_THERE)
    async def undrain(id: Identifier) -> DrainAnswer:
        """Stop draining an instance: it gets requests again."""
        return _set_draining(status, id, False)

    @app.post("/admin/instances/{id}/weights-changed", dependencies=write, responses=NOT_THERE)
    async def weights_changed(id: Identifier) -> CacheForgottenAnswer:
        """Forget what the index believes the instance to hold: its weights were replaced while it runs. Its own
        event AllBlocksCleared does the same. Entries of the shared pool are not touched.
        """
        if not status.forget_cache(id):
            raise _no_instance()
        return CacheForgottenAnswer(id=id)


def _set_draining(status: Status, instance: str, on: bool) -> DrainAnswer:
    if not status.drain(instance, on):
        raise _no_instance()
    return DrainAnswer(id=instance, draining=on)


def _no_instance() -> NotFound:
    return NotFound("no such instance", param="id", code="unknown_instance")


class AdminGuard:
    """Checks the caller of each admin request."""

    def __init__(self, tokens: Sequence[AdminTokenConfig]) -> None:
        self._tokens = AdminTokens(tokens)

    def require(self, right: Right) -> Callable[[Request], Awaitable[str]]:
        """Return a dependency that gives the caller's name, or raises `Unauthorized` or `Forbidden`."""

        async def check(request: Request) -> str:
            if self._tokens:
                who = self._authenticate(request, right)
            else:
                _check_origin(request)
                who = ANYBODY
            if right == "write":
                log.info("%s: %s %s", who, request.method, quote_name(request.url.path))
            return who

        return check

    def rights(self, request: Request) -> list[str]:
        """Return the rights of a caller who has passed; all of them when no token is required."""
        if not self._tokens:
            return list(get_args(Right))
        holder = self._find_holder(request)
        return [] if holder is None else sorted(holder.rights)

    def _find_holder(self, request: Request) -> AdminTokenConfig | None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        return self._tokens.holder(token.encode()) if scheme.lower() == "bearer" else None

    def _authenticate(self, request: Request, right: Right) -> str:
        holder = self._find_holder(request)
        if holder is None:
            raise Unauthorized("an admin token is needed: Authorization: Bearer TOKEN", code="invalid_token")
        if right not in holder.rights:
            raise Forbidden(f'this token has no right to "{right}"', code="missing_right")
        return holder.name


def _check_origin(request: Request) -> None:
    host = request.headers.get("host", "")
    if not is_loopback(_hostname(host) or ""):
        raise Forbidden("the Host header must name this machine's loopback address", code="wrong_host")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise Forbidden("requests from other sites' pages are refused", code="wrong_origin")
    if request.headers.get("sec-fetch-site", "none") not in OWN_SITE:
        raise Forbidden("requests from other sites' pages are refused", code="wrong_origin")


def _hostname(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
