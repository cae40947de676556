"""An HTTP server for one ASGI application on a real socket of this process.

It runs uvicorn's protocol on the event loop's own server, without uvicorn's signal handling and its ten ticks a second,
so an idle server costs nothing and stops at once. `HttpExchange.abort` works on every request that arrives through it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.testbed.emulator.http_exchange import ABORT, Message, Receive, Send

END_TIMEOUT_S = 1.0
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]


class EmulatorListener:
    """Listens while entered; entering raises OSError when the port is in use.

    With `port` 0 the system chooses one, and `port` holds it once entered. `headers` go with every answer.
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
        app_of_uvicorn: Any = app  # its own types are narrower than what it calls
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
