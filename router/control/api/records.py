"""Why a request went where it went, and where one would go now: `/admin/records/{id}` and `/admin/explain`.

A record is JSON for programs and, for a browser, a page: one file without scripts or anything from elsewhere, which the
Content-Security-Policy holds it to (its one style sheet is named by digest). Records carry what clients and engines
called things, so every value is escaped. Knows nothing of the rooms: plain JSON types come in.
"""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from importlib.resources import files
from typing import Annotated, Any, Protocol

import jinja2
from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import HTMLResponse

from router.control.api.policies import OpenShape, Responses
from router.control.explain import ExplainRequest
from router.errors import NotFound, TooLarge
from router.proxy.asgi import read_body
from router.request.public_api import CACHE_ROUTED, LOAD_ROUTED
from router.scheduling.policy.rationale import format_amount

HTML, JSON = "text/html", "application/json"

TEXT = {"type": "string"}
QUALITY = re.compile(r"0(\.\d{0,3})?|1(\.0{0,3})?")
REQUEST_BODY = {
    "description": "the body of the request as its client would send it",
    "required": True,
    "content": {JSON: {"schema": {"type": "object"}}},
}

Identifier = Annotated[str, Path(min_length=1, max_length=200)]
Given = Annotated[str | None, Query(max_length=512)]


class RecordSource(Protocol):
    async def record(self, record_id: str) -> dict[str, Any] | None:
        """The record of a request as plain JSON types, or None when it is not (or no longer) kept."""


class Explainer(Protocol):
    @property
    def body_bytes(self) -> int:
        """What a request's body may have."""

    @property
    def extra_paths(self) -> Collection[str]:
        """What is routed beside the paths that every engine has."""

    async def explain(self, asked: ExplainRequest) -> dict[str, Any]:
        """What would happen to a request now, as plain JSON types; nothing does. Raises `Refused`."""


class RecordShape(OpenShape):
    id: str
    target: str | None


class ExplanationShape(OpenShape):
    target: str
    why: str
    policy: str


def add_record_routes(
    app: FastAPI,
    records: RecordSource,
    explaining: Explainer,
    read: Sequence[Any],
    described: Callable[..., Responses],
) -> None:
    """Adds both to `app`, for whoever passes the dependencies `read`. `described` makes OpenAPI's errors."""
    _what_happened(app, records, read, described(_404="no such record"))
    refusals = described(
        _400="what the engines' door would refuse", _404="no such model or path", _413="too large", _503="no engine"
    )
    _what_would_happen(app, explaining, read, refusals)


def _what_happened(app: FastAPI, records: RecordSource, read: Sequence[Any], not_there: Responses) -> None:
    a_page: Responses = {200: {"description": "JSON, or a page for people", "content": {HTML: {"schema": TEXT}}}}

    @app.get("/admin/records/{id}", dependencies=read, response_model=RecordShape, responses=not_there | a_page)
    async def record(id: Identifier, request: Request, response: Response) -> Any:
        """As JSON, or as a page where the client prefers `text/html`."""
        found = await records.record(id)
        if found is None:
            raise NotFound("no such record, or it is no longer kept", param="id", code="unknown_record")
        if prefers_html(request.headers.get("accept")):
            return HTMLResponse(render_page(found), headers=PAGE_HEADERS)
        response.headers["vary"] = "accept"
        return found


def _what_would_happen(app: FastAPI, explaining: Explainer, read: Sequence[Any], refusals: Responses) -> None:
    @app.post("/admin/explain", dependencies=read, responses=refusals, openapi_extra={"requestBody": REQUEST_BODY})
    async def explain(
        request: Request,
        path: Annotated[str, Query(max_length=512)],
        policy: Given = None,
        session: Given = None,
        client: Given = None,
        ttft_ms: Given = None,
        tpot_ms: Given = None,
    ) -> ExplanationShape:
        """What would happen now to the request with this body: nothing is booked, counted or learned.

        `path`: where it would be sent. `policy`: whose choice is wanted, else whichever would decide. `session`: what
        its X-Session-ID would say. `client`: the name of the API key it would come with. `ttft_ms`, `tpot_ms`: the
        objectives in its headers.
        """
        if path not in CACHE_ROUTED | LOAD_ROUTED and path not in explaining.extra_paths:
            raise NotFound(f"POST {path} is not served here", param="path", code="unknown_path")
        limit_bytes = explaining.body_bytes
        too_large = TooLarge(f"the request body is larger than the limit of {limit_bytes} bytes")
        body = await read_body(request, limit_bytes, too_large)
        asked = ExplainRequest(
            path, body, request.headers.get("content-type"), policy, session, client, ttft_ms, tpot_ms
        )
        return ExplanationShape.model_validate(await explaining.explain(asked))


# which of the two


def prefers_html(accept: str | None) -> bool:
    """By the Accept header (RFC 9110, 12.5.1): JSON is what there always was, so equals are JSON's."""
    return accept is not None and _quality(accept, HTML) > _quality(accept, JSON)


def _quality(accept: str, media: str) -> float:
    """The q of the most specific range that `media` falls into; 0: none, or one that makes no sense."""
    ranges = dict(map(_range, accept.split(",")))
    fitting = (media, media.partition("/")[0] + "/*", "*/*")
    return next((ranges[name] for name in fitting if name in ranges), 0.0)


def _range(text: str) -> tuple[str, float]:
    name, *parameters = (part.strip().lower() for part in text.split(";"))
    q = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    return name, float(q) if QUALITY.fullmatch(q) else 0.0


# the page


def render_page(record: Mapping[str, Any]) -> str:
    """`readable(record)` as HTML."""
    return _TEMPLATE.render(record=record)


def _shown(value: Any) -> Any:
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return format_amount(value)
    return f"{value:,}" if isinstance(value, int) else value


def _moment(wall_s: float) -> str:
    return datetime.fromtimestamp(wall_s, UTC).isoformat(" ", "milliseconds")


def _template(text: str) -> jinja2.Template:
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"shown": _shown, "moment": _moment}
    return environment.from_string(text)


_TEXT = files("router.control.api").joinpath("record.html").read_text(encoding="utf-8")
_TEMPLATE = _template(_TEXT)
_STYLE = b64encode(sha256(_TEXT.partition("<style>")[2].partition("</style>")[0].encode()).digest()).decode()

PAGE_HEADERS = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "vary": "accept",
}
