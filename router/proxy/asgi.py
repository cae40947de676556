"""An ASGI application behind our connections: what FastAPI serves, health and metrics and the operator's door.

The hot paths do without it (`openai.py` answers exchanges as they are). An application is never cancelled: that its
client has gone it learns from `receive`, as ASGI has it.
"""

from __future__ import annotations

from typing import Any

from router.proxy.client_exchange import ClientExchange

Message = dict[str, Any]
DISCONNECT: Message = {"type": "http.disconnect"}


class AsgiHandler:
    """`app` as something that answers exchanges."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def answer(self, exchange: ClientExchange) -> None:
        bridge = _Bridge(exchange)
        await self._app(_scope(exchange), bridge.receive, bridge.send)


class _Bridge:
    """`receive` and `send` of one exchange."""

    def __init__(self, exchange: ClientExchange) -> None:
        self._exchange = exchange
        self._told = False  # all of the body

    async def receive(self) -> Message:
        exchange = self._exchange
        if not self._told and not exchange.complete:
            body = await exchange.piece()
            if not exchange.gone:
                self._told = not exchange.arriving
                return {"type": "http.request", "body": body, "more_body": exchange.arriving}
        await exchange.over()
        return DISCONNECT

    async def send(self, message: Message) -> None:
        exchange = self._exchange
        if exchange.gone:
            return
        if message["type"] == "http.response.start":
            exchange.start(message["status"], _headers(message.get("headers", ()), exchange))
        elif message.get("more_body", False):
            exchange.chunk(message.get("body", b""))
        else:
            exchange.finish(message.get("body", b""))
        if exchange.behind:
            await exchange.caught_up()


def _headers(headers: Any, exchange: ClientExchange) -> list[tuple[bytes, bytes]]:
    """`connection` is ours to say; an application may only ask for its end."""
    kept = []
    for name, value in headers:
        if (lower := name.lower()) != b"connection":
            kept.append((lower, value))
        elif value.lower() == b"close":
            exchange.keep_alive = False
    return kept


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
