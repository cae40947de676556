"""A listening socket: uvicorn's configuration, application loading and TLS around our connection protocol.

uvicorn's own `Server.run` takes over the process (signals, `sys.exit` on a busy port, ten wake-ups a second). Two
listeners share one event loop here and `app.py` owns the signals, so this does the two things needed: start, so that
the bound port is known, and stop, so that running exchanges may end.
"""

from __future__ import annotations

import asyncio
import errno
import functools
import ssl
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from router.config.schema import Listen
from router.errors import ConfigError
from router.web.http1 import Bounds, ClientConnection

KEEPALIVE_S = 75.0  # longer than the usual 60 s of load balancers, so that they are the ones to close
BACKLOG = 2048
LAST_MOMENT_S = 1.0


def serve_config(asgi_app: Any, listen: Listen, *, stall_timeout_s: float = 120.0) -> uvicorn.Config:
    """`stall_timeout_s`: a client that takes nothing of its answer for so long is cut.

    Raises `ConfigError` for certificate files that cannot be used.
    """
    bounds = Bounds(
        header_bytes=listen.header_bytes,
        header_timeout_s=listen.header_timeout_s,
        body_idle_timeout_s=listen.body_idle_timeout_s,
        keepalive_s=KEEPALIVE_S,
        stall_timeout_s=stall_timeout_s,
    )
    config = uvicorn.Config(
        asgi_app,
        host=listen.host,
        port=listen.port,
        http=functools.partial(ClientConnection, bounds),  # type: ignore[arg-type]
        loop="uvloop",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        backlog=BACKLOG,
        ssl_certfile=listen.tls.cert_file if listen.tls else None,
        ssl_keyfile=listen.tls.key_file if listen.tls else None,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"listen.tls: {error}") from error
    return config


class Listener:
    """Serves `config` on the running event loop (uvloop) from `start` to `stop`."""

    def __init__(self, config: uvicorn.Config, handshake_timeout_s: float = 10.0) -> None:
        self._config = config
        self._handshake_timeout_s = handshake_timeout_s
        self._state = ServerState()
        self._state.connections = self._connections = _Connections()
        self._server: asyncio.Server | None = None
        self.port = config.port

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        """Listens; `port` is the bound one from here on. Raises `ConfigError` when the address cannot be had."""
        config = self._config

        def connection() -> asyncio.Protocol:
            return config.http_protocol_class(config=config, server_state=self._state, app_state={})  # type: ignore[call-arg]

        try:
            self._server = await asyncio.get_running_loop().create_server(
                connection,
                config.host,
                config.port,
                ssl=config.ssl,
                ssl_handshake_timeout=self._handshake_timeout_s if config.ssl else None,
                backlog=config.backlog,
            )
        except OSError as error:
            raise ConfigError(_why_not(error, config.host, config.port)) from error
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self, grace_s: float) -> None:
        """No new connections; running exchanges have `grace_s` to end, then they are cut."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in list(self._connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(grace_s):
                await self._connections.all_gone()
        except TimeoutError:
            for connection in list(self._connections):
                connection.transport.abort()
            await self._connections.all_gone()
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        """What is cut ends by itself; what does not look whether its client is there gets a moment."""
        if self._state.tasks:
            _, stuck = await asyncio.wait(self._state.tasks, timeout=LAST_MOMENT_S)
            for task in stuck:
                task.cancel()


class _Connections(set[Any]):
    """The open ones, and word of the last one's end (`Server.wait_closed` does not wait for it on uvloop)."""

    def __init__(self) -> None:
        super().__init__()
        self._none = asyncio.Event()

    def discard(self, connection: Any) -> None:
        super().discard(connection)
        if not self:
            self._none.set()

    async def all_gone(self) -> None:
        while self:
            self._none.clear()
            await self._none.wait()


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use on {host}: stop what listens there, or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be used by this user: choose one above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
