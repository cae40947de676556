"""The applications behind health and metrics.

`/health` reports only that the process answers, so that a supervisor does not restart a router whose engines are
down. `/ready` reports whether a load balancer should send requests to this process.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple

from fastapi import Depends, FastAPI, Header, Response
from fastapi.responses import JSONResponse

from router.errors import Unauthorized
from router.fleet.fleet import Fleet
from router.request.error_body import install_error_handlers
from router.request.public_paths import READ
from router.request.query_parameters import refuse_unknown_parameters
from router.telemetry.metrics.exposition import CONTENT_TYPES, PageForm, choose_form


class MetricsAccess(NamedTuple):
    """The metrics page, and the sha256 (hex) of the bearer token that it requires; None if it requires no token."""

    scrape: Callable[[PageForm], Awaitable[bytes]]
    token_hash: str | None = None
    has_exemplars: bool = False  # if True, OpenMetrics is worth its higher rendering cost


class Readiness:
    """Readiness of a process for requests. With `wakes`, a request for a model without an engine starts one."""

    def __init__(self, fleet: Fleet, *, wakes: bool) -> None:
        self._fleet = fleet
        self._wakes = wakes
        self.started = self.stopping = False

    def unready_reason(self) -> str | None:
        """Return why the process should get no requests now; None if it should get requests."""
        if self.stopping:
            return "stopping"
        if not self.started:
            return "starting"
        if not self._wakes and not any(each.may_serve for each in self._fleet):
            return "no instance is ready"
        return None


def ops_app(why_not_ready: Callable[[], str | None], metrics: MetricsAccess | None) -> FastAPI:
    """Return the application behind `OPS`. `why_not_ready` returns None if this process should get requests
    (`Readiness`). `metrics` is None if metrics have a separate listener.
    """
    app = _app() if metrics is None else metrics_app(metrics)

    @app.api_route("/health", methods=list(READ))
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.api_route("/ready", methods=list(READ))
    async def ready() -> JSONResponse:
        reason = why_not_ready()
        if reason is not None:
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        return JSONResponse({"status": "ready"})

    return app


def metrics_app(access: MetricsAccess) -> FastAPI:
    """Return an application that serves the metrics and nothing else."""
    app = _app()

    @app.api_route("/metrics", methods=list(READ), dependencies=[Depends(refuse_unknown_parameters)])
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
