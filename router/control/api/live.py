"""The live page and its data: `/` with its scripts and styles, the feed, and what it asks for on a click.

The files of the page hold no data, so anybody who reaches the listener may have them. All data needs the right
`read`. The browser sends the token in a header, which no other site's page can do, and there is no cookie; so no
request that another site makes a browser send can act. The Content-Security-Policy allows scripts, styles and
connections from this listener only, and none inline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from importlib.resources import files
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Path, Query, Request, Response
from starlette.types import Receive, Scope, Send

from router.control.api.shapes import OpenShape
from router.control.live.feed import LiveFeed, Viewer, encode_event
from router.errors import NotFound
from router.tasks import Tasks

MEDIA = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
SHELL_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}
WRITE_TIMEOUT_S = 5.0  # a viewer that takes longer for one message is dropped
LAST_REQUESTS = 100

Rights = Callable[[Request], Sequence[str]]


class CacheTreeShape(OpenShape):
    prefixes: list[dict[str, Any]]


class TargetDetailShape(OpenShape):
    instance: dict[str, Any]


def add_live_routes(app: FastAPI, feed: LiveFeed, read: Sequence[Any], rights: Rights, not_there: Any) -> None:
    """Add the page and its data to `app`; data behind the dependencies `read`. `rights` returns those of a
    caller.
    """
    _add_page(app)

    @app.get("/admin/live", dependencies=read, include_in_schema=False)
    async def live(request: Request) -> Response:
        """Return the feed of the live page, as server-sent events. Its form changes with the page."""
        return LiveResponse(feed, encode_event("hello", {"rights": rights(request)}))

    @app.get("/admin/live/target", dependencies=read, response_model=TargetDetailShape, responses=not_there)
    async def target(id: Annotated[str, Query(max_length=300)]) -> Response:
        """Return a target's instance as `GET /admin/instances` does, and the target's last 100 requests."""
        described = feed.status.describe_instance(id.rpartition("/")[0])
        if described is None:
            raise NotFound("no such target", param="id", code="unknown_target")
        requests = await feed.status.list_target_requests(id, LAST_REQUESTS)
        detail = {"instance": described, "requests": [request._asdict() for request in requests]}
        return Response(msgspec.json.encode(detail), media_type="application/json")

    @app.get("/admin/cache/tree", dependencies=read, response_model=CacheTreeShape)
    async def cache_tree(limit: Annotated[int, Query(ge=1, le=1000)] = 400) -> Response:
        """Return the prefixes that the prompts of the last 15 minutes share, those of the most requests first: how
        many requests, how many found all of it cached, and which targets hold it; and how many blocks are held
        twice.

        Prefixes have the lengths 1, 2, 4, ... blocks and are named by their block keys. No text can be found from
        them.
        """
        return Response(msgspec.json.encode(await feed.status.describe_cache(limit)), media_type="application/json")


def _add_page(app: FastAPI) -> None:
    pages = read_page_files()

    @app.get("/", include_in_schema=False)
    async def shell() -> Response:
        return Response(pages["index.html"], media_type="text/html", headers=SHELL_HEADERS)

    @app.get("/page/{name:path}", include_in_schema=False)
    async def page_file(name: Annotated[str, Path(max_length=100)]) -> Response:
        if name not in pages:
            raise NotFound("no such file", param="name", code="unknown_file")
        return Response(pages[name], media_type=MEDIA["." + name.rpartition(".")[2]], headers=SHELL_HEADERS)


def read_page_files() -> dict[str, bytes]:
    """Return the files of the page by their path in its folder."""
    folder = files("router.control").joinpath("page")
    found = {item.name: item for item in folder.iterdir() if item.is_file()}
    found |= {f"vendor/{item.name}": item for item in folder.joinpath("vendor").iterdir() if item.is_file()}
    return {name: item.read_bytes() for name, item in found.items() if "." + name.rpartition(".")[2] in MEDIA}


class LiveResponse(Response):
    """Streams the feed to one viewer until either side ends it."""

    media_type = "text/event-stream"

    def __init__(self, feed: LiveFeed, hello: bytes) -> None:
        super().__init__(headers={"cache-control": "no-store", "x-content-type-options": "nosniff"})
        del self.headers["content-length"]
        self._feed = feed
        self._hello = hello
        self._viewer = feed.join()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        viewer = self._viewer
        owner = Tasks("live viewer")
        try:
            owner.spawn("disconnect", _close_on_disconnect(receive, viewer))
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await _write(send, self._hello)
            async for message in viewer:
                await _write(send, message)
            await send({"type": "http.response.body", "body": b""})
        except TimeoutError:
            pass  # it does not read: the listener cuts the connection, as the answer is not whole
        finally:
            self._feed.leave(viewer)
            await owner.close()


async def _write(send: Send, message: bytes) -> None:
    async with asyncio.timeout(WRITE_TIMEOUT_S):
        await send({"type": "http.response.body", "body": message, "more_body": True})


async def _close_on_disconnect(receive: Receive, viewer: Viewer) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    viewer.close()
