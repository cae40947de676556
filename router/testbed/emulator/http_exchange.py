"""One HTTP exchange on the plain ASGI interface: the request read whole, the answer sent whole or in pieces.

Nothing here knows vLLM. `abort` closes the connection without finishing the answer, for the faults that need it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

ABORT = "warmroute.abort"  # the ASGI extension through which the listener offers to abort the connection
_encode = msgspec.json.Encoder().encode


class ClientLeft(Exception):
    """The client disconnected before its request was read."""


class HttpExchange:
    """A request and its answer. `headers` have lower-case names; of a repeated header the last value counts."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.query: str = scope["query_string"].decode("latin-1")
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.body = b""
        self.started = False  # the answer's head was sent
        self._abort: Callable[[], None] = scope["extensions"][ABORT]
        self._receive = receive
        self._send = send

    async def read(self) -> None:
        """Fill `body`. Raises ClientLeft when the client disconnects first."""
        parts = []
        more = True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            parts.append(message.get("body", b""))
            more = message.get("more_body", False)
        self.body = b"".join(parts)

    async def wait_closed(self) -> None:
        """Wait until the client has disconnected or received its whole answer."""
        while (await self._receive())["type"] != "http.disconnect":
            pass

    async def abort(self) -> None:
        """Cut the connection and wait until it is closed."""
        self._abort()
        await self.wait_closed()

    async def send_json(self, value: object, status: int = 200) -> None:
        """Answer with `value` encoded as JSON."""
        await self.send_body(_encode(value), "application/json", status)

    async def send_body(self, body: bytes, content_type: str, status: int = 200) -> None:
        """Answer with a body of known length."""
        headers = [(b"content-length", str(len(body)).encode()), (b"content-type", content_type.encode())]
        await self._start(status, headers)
        await self._send({"type": "http.response.body", "body": body})

    async def start_stream(self) -> None:
        """Begin an answer of server-sent events; its head is sent at once."""
        await self._start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])

    async def write(self, body: bytes) -> None:
        """Send one piece of a stream."""
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish_stream(self) -> None:
        """End a stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
