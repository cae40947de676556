"""Admin endpoints that explain decisions: `/admin/records` for past requests, `/admin/explain` for a new one.

A record is JSON for programs and an HTML page for a browser (`record_page.py`).
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from math import isfinite
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, Field

from router.config.sections.base import Shape
from router.config.validation_errors import describe_unknown
from router.control.api.policies import Responses
from router.control.api.record_page import PAGE_HEADERS, render_page
from router.control.api.shapes import OpenShape, describe_errors
from router.control.explain import Explain, ExplainRequest
from router.control.record_detail import Others
from router.control.status import Status
from router.errors import NotFound, TooBusy, TooLarge, quote_name
from router.proxy.asgi import read_body
from router.request.error_body import InvalidRequest
from router.request.public_paths import CACHE_ROUTED, LOAD_ROUTED
from router.telemetry.failure import FAILURE_REASONS
from router.telemetry.record_query import ANY_FAULT, FAILED_ATTEMPT, RecordQuery, RequestTime

HTML, JSON = "text/html", "application/json"

TEXT = {"type": "string"}
STATUS = Shape("^([1-5][0-9][0-9]|[1-5]xx|none)$", "a status such as 503, 5xx or none")
QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
EXPLAINED_AT_ONCE = 2  # bodies, each of which takes several times its length while it is read
REQUEST_BODY = {
    "description": "request body as a client would send it",
    "required": True,
    "content": {JSON: {"schema": {"type": "object"}}},
}

Identifier = Annotated[str, Path(min_length=1, max_length=200)]
OptionalText = Annotated[str | None, Field(max_length=512)]


class RecordFilter(BaseModel):
    """Query parameters of `/admin/records`."""

    limit: int = Field(default=50, ge=1, le=1000)
    id: OptionalText = None
    session: OptionalText = None
    client: OptionalText = None
    model: OptionalText = None
    target: OptionalText = None
    since: OptionalText = None
    until: OptionalText = None
    status: Annotated[str, STATUS] | None = None
    error: OptionalText = None
    slowest: RequestTime | None = None


class ExplainOptions(BaseModel):
    """Query parameters of `/admin/explain`."""

    path: str = Field(max_length=512)
    policy: OptionalText = None
    session: OptionalText = None
    parent: OptionalText = None
    client: OptionalText = None
    ttft_ms: OptionalText = None
    tpot_ms: OptionalText = None


class RecordShape(OpenShape):
    id: str
    target: str | None


class RecordList(BaseModel):
    records: list[RecordShape]


class ExplanationShape(OpenShape):
    target: str
    why: str
    policy: str


def add_record_routes(app: FastAPI, status: Status, explainer: Explain, read: Sequence[Any]) -> None:
    """Add the endpoints to `app`, behind the dependencies `read`."""
    _add_search(app, status, read)
    _add_record(app, status, read, describe_errors(_404="no such record"))
    refusals = describe_errors(
        _400="invalid request, as the public API answers it",
        _404="no such model or path",
        _413="body too large",
        _429="too many at once",
        _503="no engine",
    )
    _add_explain(app, explainer, read, refusals)


def _add_search(app: FastAPI, status: Status, read: Sequence[Any]) -> None:
    @app.get("/admin/records", dependencies=read, response_model=RecordList)
    async def records(wanted: Annotated[RecordFilter, Query()]) -> Response:
        """Return the newest decision records that match all parameters, newest first, without the parts of their
        costs; with `slowest` the slowest, slowest first. `reason`: why the request failed, as in
        `warmroute_errors_total`, or null.

        `id`: the beginning of the id. `session`: its pseudonym as records have it, or the name that the client
        gave. `client`: the name of the API key, or the sender. `model`: as the request named it. `target`: of any
        attempt, or of a prefill half. `since` and `until`: seconds since 1970, or a time in ISO 8601, UTC if it has
        no offset. `status`: such as `503` or `5xx`; `none` if the client left before. `error`: a `reason`; `any` for
        all but `client_gone` and `engine_4xx`, which are the client's own; `attempt`: an engine failed the request,
        whether or not another one answered it. `slowest`: by `ttft_ms` (streams only) or
        `duration_ms`.
        """
        since_s, until_s = read_time(wanted.since, "since"), read_time(wanted.until, "until")
        if since_s is not None and until_s is not None and since_s > until_s:
            said = f"since: found {wanted.since}, which is later than until, {wanted.until}: exchange the two"
            raise InvalidRequest(quote_name(said), param="since", code="invalid_value")
        sessions = () if wanted.session is None else (wanted.session,)
        named = wanted.client, wanted.model, wanted.target
        if wanted.error is not None and wanted.error not in (known := {*FAILURE_REASONS, ANY_FAULT, FAILED_ATTEMPT}):
            text = describe_unknown("reason", wanted.error, sorted(known))
            raise InvalidRequest(f"error: {text}", param="error", code="invalid_value")
        failed = wanted.status, wanted.error
        query = RecordQuery(wanted.limit, wanted.id, sessions, *named, since_s, until_s, *failed, wanted.slowest)
        return Response(b'{"records":[%b]}' % b",".join(await status.find_records(query)), media_type=JSON)


def read_time(text: str | None, name: str) -> float | None:
    """Return the parameter `name` as wall seconds: such a number, or a time in ISO 8601. Raises InvalidRequest."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        pass
    else:
        if isfinite(seconds):
            return seconds
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        wanted = "seconds since 1970, or a time in ISO 8601 such as 2026-11-23T03:00:00Z"
        said = f'{name}: found "{quote_name(text)}", wanted {wanted}'
        raise InvalidRequest(said, param=name, code="invalid_value") from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _add_record(app: FastAPI, status: Status, read: Sequence[Any], not_there: Responses) -> None:
    a_page: Responses = {200: {"description": "JSON, or an HTML page", "content": {HTML: {"schema": TEXT}}}}

    @app.get("/admin/records/{id}", dependencies=read, response_model=RecordShape, responses=not_there | a_page)
    async def record(id: Identifier, request: Request, response: Response, others: Others = "configured") -> Any:
        """Return a record as JSON, or as an HTML page when the client prefers `text/html`.

        `others`: which other policies say what they would have chosen: those of the router, or also the shipped
        ones.
        """
        found = await status.find_record(id, others)
        if found is None:
            raise NotFound("no such record, or it is no longer kept", param="id", code="unknown_record")
        if prefers_html(request.headers.get("accept")):
            return HTMLResponse(render_page(found), headers=PAGE_HEADERS)
        response.headers["vary"] = "accept"
        return found


def _add_explain(app: FastAPI, explainer: Explain, read: Sequence[Any], refusals: Responses) -> None:
    room = asyncio.Semaphore(EXPLAINED_AT_ONCE)

    @app.post("/admin/explain", dependencies=read, responses=refusals, openapi_extra={"requestBody": REQUEST_BODY})
    async def explain(request: Request, options: Annotated[ExplainOptions, Query()]) -> ExplanationShape:
        """Explain where a request with this body would be sent now; nothing is booked, counted or learned.

        `path`: request path. `policy`: policy that chooses, default the one that would decide. `session` and
        `parent`: values of its headers X-Session-ID and X-Parent-Session-ID. `client`: name of its API key.
        `ttft_ms`, `tpot_ms`: values of its objective headers.
        """
        path = options.path
        if path not in CACHE_ROUTED | LOAD_ROUTED and path not in explainer.extra_paths:
            raise NotFound(f"POST {quote_name(path)} is not served here", param="path", code="unknown_path")
        if room.locked():
            text = f"{EXPLAINED_AT_ONCE} requests are being explained already"
            raise TooBusy(text, code="too_many_explained", retry_after_s=1)
        limit_bytes = explainer.body_bytes
        too_large = TooLarge(f"the request body is larger than the limit of {limit_bytes} bytes")
        async with room:
            body = await read_body(request, limit_bytes, too_large)
            content_type = request.headers.get("content-type")
            explained = ExplainRequest(body=body, content_type=content_type, **dict(options))
            return ExplanationShape.model_validate(await explainer.explain(explained))


# JSON or HTML


def prefers_html(accept: str | None) -> bool:
    """Return whether the Accept header (RFC 9110, 12.5.1) ranks HTML above JSON. JSON, the first format, wins
    ties.
    """
    return accept is not None and _quality(accept, HTML) > _quality(accept, JSON)


def _quality(accept: str, media: str) -> float:
    """Return the q of the most specific range that matches `media`; 0 when none does or its q is invalid."""
    ranges = dict(map(_parse_range, accept.split(",")))
    matching = (media, media.partition("/")[0] + "/*", "*/*")
    return next((ranges[name] for name in matching if name in ranges), 0.0)


def _parse_range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    q = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    return name, float(q) if QUALITY.fullmatch(q) else 0.0
