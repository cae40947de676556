"""The operator's door, on a listener of its own: what the router sees, what it decided, and draining an instance.

Who may come in: with `admin.tokens`, whoever has one with the right for it. Without any, whoever reaches the socket,
which the configuration allows on loopback only; then a browser is the danger. A page of another site can be made to
resolve to 127.0.0.1 (DNS rebinding), so the Host must be a loopback name, and any page can post here blindly, so a
request that a browser marks as another site's is refused.

What is shown and done comes through `Operations`; this file knows nothing of the rooms behind it.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Literal, Protocol
from urllib.parse import urlsplit

from fastapi import Depends, FastAPI, Path, Query, Request
from pydantic import BaseModel, ConfigDict

from router.config.schema import AdminToken
from router.errors import NotFound, Refused, Unauthorized
from router.web.errors import install

log = logging.getLogger("warmroute.admin")

Right = Literal["read", "write"]
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
OWN_SITE = frozenset({"same-origin", "none"})  # values of Sec-Fetch-Site; none: typed by the user


class Forbidden(Refused):
    status, kind = 403, "permission_error"


class Operations(Protocol):
    """What the operator may see and do; plain JSON types throughout."""

    def instances(self) -> list[dict[str, Any]]:
        """State, load, index size, stream health and tokenizer of each instance; at least `id`, `url`, `state`."""

    def discovery(self) -> dict[str, str | None]:
        """By source of instances, why its list may be out of date; None: it is not."""

    def drain(self, instance: str, on: bool) -> bool:
        """No new requests for it (or again). False: there is no such instance."""

    def record(self, record_id: str) -> dict[str, Any] | None:
        """The record of a request, or None when it is not (or no longer) kept."""

    def records(self, limit: int) -> list[dict[str, Any]]:
        """The newest records first."""

    def pool(self) -> dict[str, Any] | None:
        """Who leads, how questions ended, and how each model's blocks are named; None: no pool is configured."""

    def policies(self) -> dict[str, Any]:
        """`active`, `names`, and `needs` of the active one."""


class Shape(BaseModel):
    """Known fields first; what else the rooms tell is passed on."""

    model_config = ConfigDict(extra="allow")


class InstanceShape(Shape):
    id: str
    url: str
    state: str


class RecordShape(Shape):
    id: str
    target: str | None


class PoliciesShape(Shape):
    active: str
    names: list[str]
    needs: list[str]


class PoolShape(Shape):
    configured: bool


class InstanceList(BaseModel):
    instances: list[InstanceShape]
    discovery: dict[str, str | None]


class RecordList(BaseModel):
    records: list[RecordShape]


class Drained(BaseModel):
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

Identifier = Annotated[str, Path(min_length=1, max_length=200)]


def admin_app(operations: Operations, tokens: Sequence[AdminToken]) -> FastAPI:
    """The application for the admin listener. `tokens` empty: open, to be bound to a loopback address only."""
    app = FastAPI(
        title="Warmroute admin",
        openapi_url="/admin/openapi.json",
        docs_url=None,
        redoc_url=None,
        responses=NO_ENTRY | INVALID,
    )
    install(app)
    guard = Guard(tokens)
    read, write = [Depends(guard.asking("read"))], [Depends(guard.asking("write"))]
    _looking(app, operations, read)
    _doing(app, operations, write)
    return app


def _looking(app: FastAPI, operations: Operations, read: list[Any]) -> None:
    @app.get("/admin/instances", dependencies=read)
    async def instances() -> InstanceList:
        return InstanceList.model_validate({"instances": operations.instances(), "discovery": operations.discovery()})

    @app.get("/admin/records", dependencies=read)
    async def records(limit: Annotated[int, Query(ge=1, le=1000)] = 50) -> RecordList:
        return RecordList.model_validate({"records": operations.records(limit)})

    @app.get("/admin/records/{id}", dependencies=read, responses=NOT_THERE)
    async def record(id: Identifier) -> RecordShape:
        found = operations.record(id)
        if found is None:
            raise NotFound("no such record, or it is no longer kept", param="id", code="unknown_record")
        return RecordShape.model_validate(found)

    @app.get("/admin/pool", dependencies=read)
    async def pool() -> PoolShape:
        told = operations.pool()
        return PoolShape.model_validate({"configured": told is not None, **(told or {})})

    @app.get("/admin/policies", dependencies=read)
    async def policies() -> PoliciesShape:
        return PoliciesShape.model_validate(operations.policies())


def _doing(app: FastAPI, operations: Operations, write: list[Any]) -> None:
    @app.post("/admin/instances/{id}/drain", dependencies=write, responses=NOT_THERE)
    async def drain(id: Identifier) -> Drained:
        """The instance finishes what it has and gets nothing new."""
        return _drained(operations, id, True)

    @app.post("/admin/instances/{id}/undrain", dependencies=write, responses=NOT_THERE)
    async def undrain(id: Identifier) -> Drained:
        """The instance gets requests again."""
        return _drained(operations, id, False)


def _drained(operations: Operations, instance: str, on: bool) -> Drained:
    if not operations.drain(instance, on):
        raise NotFound("no such instance", param="id", code="unknown_instance")
    return Drained(id=instance, draining=on)


class Guard:
    """Says who may come in."""

    def __init__(self, tokens: Sequence[AdminToken]) -> None:
        self._tokens = [(token, bytes.fromhex(token.hash)) for token in tokens]

    def asking(self, right: Right) -> Callable[[Request], Awaitable[None]]:
        """A dependency that lets a request pass or raises `Unauthorized` or `Forbidden`."""

        async def check(request: Request) -> None:
            if self._tokens:
                who = self._who(request, right)
            else:
                _check_origin(request)
                who = "anybody"
            if right == "write":
                log.info("%s: %s %s", who, request.method, request.url.path)

        return check

    def _who(self, request: Request, right: Right) -> str:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode()).digest()
        # All are compared, in constant time each: how long it takes says nothing about any of them.
        found = [token for token, known in self._tokens if hmac.compare_digest(digest, known)]
        if scheme.lower() != "bearer" or not found:
            raise Unauthorized("an admin token is needed: Authorization: Bearer TOKEN", code="invalid_token")
        if right not in found[0].rights:
            raise Forbidden(f'this token has no right to "{right}"', code="missing_right")
        return found[0].name


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
