"""One HTTP exchange on the plain ASGI interface: the request read whole, the answer written whole or in pieces.

Nothing here knows vLLM. `cut` closes the connection without a goodbye, for the faults that need it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CUT = "warmroute.cut"  # the ASGI extension under which the listener offers to cut the connection
_encode = msgspec.json.Encoder().encode


class ClientLeft(Exception):
    """The client went away before its request was read."""


class HttpExchange:
    """`headers` have lower-case names; of a repeated header the last value counts."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode("latin-1")
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.body = b""
        self.started = False
        self._cut: Callable[[], None] = scope["extensions"][CUT]
        self._receive = receive
        self._send = send

    async def read(self) -> None:
        """Fill `body`. Raises Disconnected."""
        parts = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        self.body = b"".join(parts)

    async def gone(self) -> None:
        """Returns when the client has gone, or has its whole answer."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def cut(self) -> None:
        self._cut()
        await self.gone()

    async def answer(self, value: object, status: int = 200) -> None:
        await self.send(_encode(value), "application/json", status)

    async def send(self, body: bytes, content_type: str, status: int = 200) -> None:
        headers = [(b"content-length", str(len(body)).encode()), (b"content-type", content_type.encode())]
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def stream(self) -> None:
        """Begin a stream of server-sent events; the head goes out at once."""
        await self._start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])

    async def write(self, body: bytes) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self) -> None:
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
