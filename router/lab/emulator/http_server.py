"""A small HTTP server: one ASGI application on a real socket of this process, and the exchanges that it handles.

The server runs uvicorn's protocol on the event loop's own server, without uvicorn's signal handling and its ten
ticks a second, so an idle server costs nothing and stops at once. Requests are read whole; answers are sent whole
or in pieces. Nothing in this module is specific to vLLM. `HttpExchange.abort` cuts a connection without finishing
the answer, for faults.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Self

import msgspec
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

ABORT = "warmroute.abort"  # the ASGI extension through which the listener offers to abort the connection
END_TIMEOUT_S = 1.0
_encode = msgspec.json.Encoder().encode


class ClientLeft(Exception):
    """The client disconnected before its request was read."""


def _headers(body: bytes, content_type: str | None) -> list[tuple[bytes, bytes]]:
    headers = [(b"content-length", str(len(body)).encode())]
    return headers if content_type is None else [*headers, (b"content-type", content_type.encode())]


class HttpExchange:
    """A request and its answer. `headers` have lower-case names; of a repeated header the last value counts."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.scheme: str = scope["scheme"]
        self.query: str = scope["query_string"].decode("latin-1")
        self.headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        self.body = b""
        self.started = False  # the answer's head was sent
        self.answer_headers: list[tuple[bytes, bytes]] = []  # sent beside the answer's own
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

    async def send_json(self, value: object, status: int = 200, *, cut_after_bytes: int | None = None) -> None:
        """Answer with `value` encoded as JSON. `cut_after_bytes`: close the connection after so many bytes."""
        body = _encode(value)
        if cut_after_bytes is None or cut_after_bytes >= len(body):
            await self.send_body(body, "application/json", status)
            return
        await self._start(status, _headers(body, "application/json"))
        await self._send({"type": "http.response.body", "body": body[:cut_after_bytes], "more_body": True})
        await self.abort()

    async def send_body(self, body: bytes, content_type: str | None, status: int = 200) -> None:
        """Answer with a body of known length. `content_type` None: no such header, as for an empty body."""
        await self._start(status, _headers(body, content_type))
        await self._send({"type": "http.response.body", "body": body})

    async def start_stream(self) -> None:
        """Begin an answer of server-sent events and send its head at once."""
        await self._start(200, [(b"content-type", b"text/event-stream; charset=utf-8")])

    async def write(self, body: bytes) -> None:
        """Send one piece of a stream."""
        await self._send({"type": "http.response.body", "body": body, "more_body": True})

    async def finish_stream(self) -> None:
        """End a stream."""
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        headers = [*headers, *self.answer_headers]
        await self._send({"type": "http.response.start", "status": status, "headers": headers})


class EmulatorListener:
    """HTTP server that listens while entered; entering raises OSError when the port is in use.

    With `port` 0 the system chooses a port; once entered, `port` holds it. `headers` are sent with every answer.
    """

    def __init__(
        self,
        app: Asgi,
        host: str,
        port: int,
        *,
        tls: ssl.SSLContext | None = None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.host = host
        self.port = port
        self._tls = tls
        self._state = ServerState()
        self._state.default_headers = list(headers)
        app_of_uvicorn: Any = app  # uvicorn's type hints accept less than uvicorn can call
        self._config = uvicorn.Config(
            app_of_uvicorn,
            http=_Connection,
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
        )
        self._config.load()
        self._server: asyncio.Server | None = None

    @property
    def url(self) -> str:
        scheme = "http" if self._tls is None else "https"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    async def __aenter__(self) -> Self:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connection, self.host, self.port, ssl=self._tls, backlog=2048)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop at once: cut all connections, so that requests end as they do when their client disconnects."""
        assert self._server is not None
        self._server.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=END_TIMEOUT_S)

    def _connection(self) -> asyncio.Protocol:
        return _Connection(self._config, self._state, {})


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, with a way for the application to abort it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {ABORT: self.transport.abort}  # type: ignore[dict-item]
