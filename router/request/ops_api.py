"""What machines ask about the router itself, on the public port: `/health`, `/ready`, `/metrics`.

`/health` says that the process answers and nothing more, so that a supervisor does not restart a router whose engines
are down. `/ready` says whether a load balancer should send requests here. Nothing else is served, and no description of
it either.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fastapi import FastAPI, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from router.request.error_body import install_error_handlers


def ops_app(why_not_ready: Callable[[], str | None], scrape: Callable[[], Awaitable[bytes]]) -> FastAPI:
    """`why_not_ready` answers None when the router is started, not stopping, and has an engine to send to; `scrape`
    the metrics page.
    """
    app = FastAPI(openapi_url=None)
    install_error_handlers(app)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/ready")
    async def ready() -> JSONResponse:
        reason = why_not_ready()
        if reason is not None:
            return JSONResponse({"status": "not ready", "reason": reason}, 503)
        return JSONResponse({"status": "ready"})

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(await scrape(), media_type=CONTENT_TYPE_LATEST)

    return app
