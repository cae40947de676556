"""The operator's door, on a listener of its own: what the router sees, what it decided, draining, and who may come in.

Who may come in: with `admin.tokens`, whoever has one with the right for it. Without any, whoever reaches the socket,
which the configuration allows on loopback only; then a browser is the danger. A page of another site can be made to
resolve to 127.0.0.1 (DNS rebinding), so the Host must be a loopback name, and any page can post here blindly, so a
request that a browser marks as another site's is refused.

What is shown and done comes through `AdminOperations`, and what decides is switched through `PolicyControl`
(`add_policy_routes.py`); this file knows nothing of the rooms behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Path, Query, Request, Response
from pydantic import BaseModel
from starlette.routing import Match

from router.config.sections.listeners import AdminTokenConfig
from router.control.api.policies import ErrorDescriptions, OpenShape, PolicyControl, add_policy_routes
from router.control.api.records import Explainer, RecordShape, add_record_routes
from router.errors import Forbidden, NotFound, RequestRefused, Unauthorized
from router.request.admin_tokens import AdminTokens
from router.request.error_body import encode_error, install_error_handlers

log = logging.getLogger("warmroute.admin")

Right = Literal["read", "write"]
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
ANYBODY = "anybody"  # who came in, where no token is asked for
OWN_SITE = frozenset({"same-origin", "none"})  # values of Sec-Fetch-Site; none: typed by the user


class AdminOperations(Protocol):
    """What the operator may see and do; plain JSON types throughout."""

    def instances(self) -> list[dict[str, Any]]:
        """State, load, index size, stream health and tokenizer of each instance; at least `id`, `url`, `state`."""

    def discovery(self) -> dict[str, str | None]:
        """By source of instances, why its list may be out of date; None: it is not."""

    def drain(self, instance: str, on: bool) -> bool:
        """No new requests for it (or again). False: there is no such instance."""

    async def record(self, record_id: str) -> dict[str, Any] | None:
        """The record of a request, or None when it is not (or no longer) kept."""

    async def records(self, limit: int) -> list[dict[str, Any]]:
        """The newest records first."""

    def workers(self) -> list[dict[str, Any]]:
        """The processes that answer requests, this one first, and what decides in each."""

    def admission(self) -> list[dict[str, Any]]:
        """By model: live sessions, what fits, and who waits in which place for how long; none where all may begin."""

    def pool(self) -> dict[str, Any] | None:
        """Who leads, how questions ended, and how each model's blocks are named; None: no pool is configured."""


class InstanceShape(OpenShape):
    id: str
    url: str
    state: str


class PoolShape(OpenShape):
    configured: bool


class ModelAdmissionShape(OpenShape):
    model: str
    capacity_tokens: int | None


class ModelAdmissionList(BaseModel):
    models: list[ModelAdmissionShape]


class InstanceList(BaseModel):
    instances: list[InstanceShape]
    discovery: dict[str, str | None]


class WorkerShape(OpenShape):
    number: int
    pid: int | None
    up: bool


class WorkerList(BaseModel):
    workers: list[WorkerShape]


class RecordList(BaseModel):
    records: list[RecordShape]


class DrainAnswer(BaseModel):
    id: str
    draining: bool


class ErrorDetail(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorShape(BaseModel):
    error: ErrorDetail


def _errors(**meanings: str) -> dict[int | str, dict[str, Any]]:
    return {int(status[1:]): {"model": ErrorShape, "description": text} for status, text in meanings.items()}


NO_ENTRY = _errors(_401="no valid token", _403="not allowed")
INVALID = _errors(_422="an invalid parameter")
NOT_THERE = _errors(_404="no such thing")
DESCRIBED = ErrorDescriptions(
    not_there=NOT_THERE,
    not_now=_errors(_409="not as things stand"),
    text=_errors(_400="the body ended early", _413="the body is too large"),
    json=_errors(_400="the body is not JSON") | NOT_THERE,
)

Identifier = Annotated[str, Path(min_length=1, max_length=200)]


def admin_app(
    operations: AdminOperations, control: PolicyControl, explaining: Explainer, tokens: Sequence[AdminTokenConfig]
) -> FastAPI:
    """The application for the admin listener. `tokens` empty: open, to be bound to a loopback address only."""
    app = FastAPI(
        title="Warmroute admin",
        openapi_url="/admin/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=NO_ENTRY | INVALID,
    )
    install_error_handlers(app)
    guard = AdminGuard(tokens)
    read, write = Depends(guard.asking("read")), Depends(guard.asking("write"))
    _looking(app, operations, [read])
    _doing(app, operations, [write])
    add_record_routes(app, operations, explaining, [read], _errors)
    add_policy_routes(app, control, read, write, DESCRIBED)
    _allow_all_methods(app)
    return app


def _allow_all_methods(app: FastAPI) -> None:
    """A refused method is answered with all that its path has: Starlette names those of the first route only."""

    async def wrong_method(request: Request, error: Exception) -> Response:
        refusal = RequestRefused(f"{request.method} {request.url.path}: method not allowed")
        refusal.status, refusal.kind = 405, "invalid_request_error"
        answer = encode_error(refusal)
        found = [route for route in app.routes if route.matches(request.scope)[0] is not Match.NONE]
        allowed = sorted({method for route in found for method in getattr(route, "methods", None) or ()})
        return Response(answer.body, 405, {"allow": ", ".join(allowed), "content-type": "application/json"})

    app.add_exception_handler(405, wrong_method)


def _looking(app: FastAPI, operations: AdminOperations, read: list[Any]) -> None:
    @app.get("/admin/instances", dependencies=read)
    async def instances() -> InstanceList:
        return InstanceList.model_validate({"instances": operations.instances(), "discovery": operations.discovery()})

    @app.get("/admin/records", dependencies=read)
    async def records(limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> RecordList:
        return RecordList.model_validate({"records": await operations.records(limit)})

    @app.get("/admin/workers", dependencies=read)
    async def workers() -> WorkerList:
        return WorkerList.model_validate({"workers": operations.workers()})

    @app.get("/admin/admission", dependencies=read)
    async def admission() -> ModelAdmissionList:
        return ModelAdmissionList.model_validate({"models": operations.admission()})

    @app.get("/admin/pool", dependencies=read)
    async def pool() -> PoolShape:
        told = operations.pool()
        return PoolShape.model_validate({"configured": told is not None, **(told or {})})


def _doing(app: FastAPI, operations: AdminOperations, write: list[Any]) -> None:
    @app.post("/admin/instances/{id}/drain", dependencies=write, responses=NOT_THERE)
    async def drain(id: Identifier) -> DrainAnswer:
        """The instance finishes what it has and gets nothing new."""
        return _drained(operations, id, True)

    @app.post("/admin/instances/{id}/undrain", dependencies=write, responses=NOT_THERE)
    async def undrain(id: Identifier) -> DrainAnswer:
        """The instance gets requests again."""
        return _drained(operations, id, False)


def _drained(operations: AdminOperations, instance: str, on: bool) -> DrainAnswer:
    if not operations.drain(instance, on):
        raise NotFound("no such instance", param="id", code="unknown_instance")
    return DrainAnswer(id=instance, draining=on)


class AdminGuard:
    """Says who may come in."""

    def __init__(self, tokens: Sequence[AdminTokenConfig]) -> None:
        self._tokens = AdminTokens(tokens)

    def asking(self, right: Right) -> Callable[[Request], Awaitable[str]]:
        """A dependency that says whose request it is, or raises `Unauthorized` or `Forbidden`."""

        async def check(request: Request) -> str:
            if self._tokens:
                who = self._who(request, right)
            else:
                _check_origin(request)
                who = ANYBODY
            if right == "write":
                log.info("%s: %s %s", who, request.method, request.url.path)
            return who

        return check

    def _who(self, request: Request, right: Right) -> str:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        holder = self._tokens.holder(given.encode())
        if scheme.lower() != "bearer" or holder is None:
            raise Unauthorized("an admin token is needed: Authorization: Bearer TOKEN", code="invalid_token")
        if right not in holder.rights:
            raise Forbidden(f'this token has no right to "{right}"', code="missing_right")
        return holder.name


def _check_origin(request: Request) -> None:
    host = request.headers.get("host", "")
    if _name_in(host) not in LOOPBACK:
        raise Forbidden("the Host header must name this machine's loopback address", code="wrong_host")
    origin = request.headers.get("origin")
    if origin is not None and origin.partition("://")[2] != host:
        raise Forbidden("requests from other sites' pages are refused", code="wrong_origin")
    if request.headers.get("sec-fetch-site", "none") not in OWN_SITE:
        raise Forbidden("requests from other sites' pages are refused", code="wrong_origin")


def _name_in(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None
