"""An ASGI application on a real socket of this process, between enter and exit.

uvicorn's protocol on the loop's own server, without uvicorn's signal handling and its ten ticks a second, so that an
idle server costs nothing and a stop is immediate. `Call.cut` works on every request that comes through it.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Self

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from router.testbed.emulator.http_exchange import CUT, Message, Receive, Send

END_TIMEOUT_S = 1.0
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]


class EmulatorListener:
    """`port` 0: the system chooses, and `port` tells once entered. Entering raises OSError when a port is taken.

    `headers` go with every answer.
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """At once: connections are cut, and requests end as they do when their client goes."""
        assert self._server is not None
        self._server.close()
        for connection in list(self._state.connections):
            connection.transport.abort()
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=END_TIMEOUT_S)

    def _connection(self) -> asyncio.Protocol:
        return _Connection(self._config, self._state, {})


class _Connection(HttpToolsProtocol):
    """uvicorn's connection, with a way for the application to cut it."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CUT: self.transport.abort}  # type: ignore[dict-item]
