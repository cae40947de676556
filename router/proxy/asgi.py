"""Runs an ASGI application behind the router's own connections: the part that FastAPI serves (health, metrics, the
admin API).

The hot paths do not use it (`request/public_api.py` answers exchanges directly). An application is never cancelled:
`receive` reports to it that its client has disconnected, as ASGI specifies.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from router.errors import BadRequest, TooLarge
from router.proxy.call import Headers
from router.proxy.client_exchange import ClientExchange

Message = dict[str, Any]
DISCONNECT: Message = {"type": "http.disconnect"}
CRASHED: Final = (
    500,
    [(b"content-type", b"application/json")],
    b'{"error":{"message":"internal error","type":"server_error","param":null,"code":"internal_error"}}',
)


class AsgiHandler:
    """A `RequestHandler` that passes exchanges to the ASGI application `app`."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def answer(self, exchange: ClientExchange) -> None:
        bridge = _Bridge(exchange)
        await self._app(_scope(exchange), bridge.receive, bridge.send)

    def on_unfit(self, status: int) -> None:
        """Do nothing: applications count no refusals."""

    def on_crash(self, exchange: ClientExchange) -> tuple[int, Headers, bytes]:
        """Return the answer for an application that sent none; most send an error answer and then raise."""
        return CRASHED


class _Bridge:
    """`receive` and `send` of one exchange."""

    def __init__(self, exchange: ClientExchange) -> None:
        self._exchange = exchange
        self._body_done = False

    async def receive(self) -> Message:
        exchange = self._exchange
        if not self._body_done and not exchange.complete:
            body = await exchange.read()
            if not exchange.gone:
                self._body_done = not exchange.arriving
                return {"type": "http.request", "body": body, "more_body": exchange.arriving}
        await exchange.wait_end()
        return DISCONNECT

    async def send(self, message: Message) -> None:
        exchange = self._exchange
        if exchange.gone:
            return
        if message["type"] == "http.response.start":
            exchange.start(message["status"], _headers(message.get("headers", ()), exchange))
        elif message.get("more_body", False):
            exchange.write(message.get("body", b""))
        else:
            exchange.finish(message.get("body", b""))
        if exchange.write_paused:
            await exchange.drain()


async def read_body(request: Request, limit_bytes: int, too_large: TooLarge) -> bytes:
    """Return the body, read no further than the limit. Raises `too_large` (a `TooLarge`) beyond the limit, and
    `BadRequest` where the client stops early.
    """
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > limit_bytes:
                raise too_large
    except ClientDisconnect:
        raise BadRequest("the request body ended early") from None
    return bytes(body)


def _headers(headers: Any, exchange: ClientExchange) -> list[tuple[bytes, bytes]]:
    """Return the headers without `connection`, which the router sets; an application may only request to close."""
    result = []
    for name, value in headers:
        if (lower := name.lower()) != b"connection":
            result.append((lower, value))
        elif value.lower() == b"close":
            exchange.keep_alive = False
    return result


def _scope(exchange: ClientExchange) -> Message:
    path, _, query = exchange.target.partition(b"?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": exchange.http_version,
        "scheme": "https" if exchange.encrypted else "http",
        "method": exchange.method,
        "root_path": "",
        "path": exchange.path,
        "raw_path": path,
        "query_string": query,
        "headers": exchange.headers,
        "state": {},
    }
