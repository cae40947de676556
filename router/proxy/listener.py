"""A listening socket: where it is bound, TLS, and the connections behind it from start to stop.

Two listeners share one event loop and `app.py` owns the signals, so this does only two things: start, so that the bound
port is known, and stop, so that running exchanges may end.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from dataclasses import dataclass
from typing import Any

from router.config.sections.listeners import ListenConfig, TlsConfig
from router.errors import ConfigError
from router.proxy.asgi import AsgiHandler
from router.proxy.client_connection import ClientConnection, ConnectionContext, ConnectionLimits, RequestHandler
from router.tasks import Tasks

KEEPALIVE_S = 75.0  # longer than the usual 60 s of load balancers, so that they are the ones to close
BACKLOG = 2048
LAST_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class RequestServer:
    """A request handler, and where it is served."""

    handler: RequestHandler
    host: str
    port: int
    limits: ConnectionLimits
    tls: ssl.SSLContext | None


def configure_server(app: Any, listen: ListenConfig, *, stall_timeout_s: float = 120.0) -> RequestServer:
    """Return how `app` (a `RequestHandler`, or any ASGI application) is served. A client that reads nothing of its
    answer for `stall_timeout_s` is cut off. Raises `ConfigError` for certificate files that cannot be used.
    """
    limits = ConnectionLimits(
        header_bytes=listen.header_bytes,
        header_timeout_s=listen.header_timeout_s,
        body_idle_timeout_s=listen.body_idle_timeout_s,
        keepalive_s=KEEPALIVE_S,
        stall_timeout_s=stall_timeout_s,
    )
    handler = app if isinstance(app, RequestHandler) else AsgiHandler(app)
    return RequestServer(handler, listen.host, listen.port, limits, _context(listen.tls) if listen.tls else None)


def _context(tls: TlsConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"listen.tls: {error}") from error
    return context


class HttpListener:
    """Serves `server` on the running event loop (uvloop) from `start` to `stop`. `shared`: other processes may listen
    on the same port; the kernel gives each connection to one of them, for good (Linux, SO_REUSEPORT).
    """

    def __init__(self, server: RequestServer, handshake_timeout_s: float = 10.0, *, shared: bool = False) -> None:
        self._config = server
        self._shared = shared
        self._handshake_timeout_s = handshake_timeout_s
        self._connections = _Connections()
        self._tasks = Tasks("listener")
        self._server: asyncio.Server | None = None
        self.port = server.port

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        """Listen; `port` is the bound one from here on. Raises `ConfigError` when the address cannot be bound."""
        config, loop = self._config, asyncio.get_running_loop()
        context = ConnectionContext(config.handler, config.limits, self._connections, self._tasks, loop)
        try:
            self._server = await loop.create_server(
                lambda: ClientConnection(context),
                config.host,
                config.port,
                ssl=config.tls,
                ssl_handshake_timeout=self._handshake_timeout_s if config.tls else None,
                backlog=BACKLOG,
                reuse_port=self._shared or None,
            )
        except OSError as error:
            raise ConfigError(_bind_error(error, config.host, config.port)) from error
        self.port = self._server.sockets[0].getsockname()[1]

    def stop_accepting(self) -> None:
        """Accept no new connections; those that are open go on."""
        if self._server is not None:
            self._server.close()

    async def stop(self, grace_s: float) -> None:
        """Accept no new connections; running exchanges have `grace_s` to end, then they are cut off."""
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
        for connection in list(self._connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(grace_s):
                await self._connections.wait_empty()
        except TimeoutError:
            for connection in list(self._connections):
                connection.transport.abort()
            await self._connections.wait_empty()
        await self._tasks.finish(LAST_GRACE_S)  # for handlers that do not watch their client


class _Connections(set[ClientConnection]):
    """The open connections, with a wait for the last one to end (`Server.wait_closed` has none on uvloop)."""

    def __init__(self) -> None:
        super().__init__()
        self._empty = asyncio.Event()

    def discard(self, connection: object) -> None:
        super().discard(connection)
        if not self:
            self._empty.set()

    async def wait_empty(self) -> None:
        while self:
            self._empty.clear()
            await self._empty.wait()


def check_port_free(host: str, port: int) -> None:
    """Raise `ConfigError` when another process listens there, even one that would share the port."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(_bind_error(error, host, port)) from error


def _bind_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use on {host}: stop what listens there, or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be used by this user: choose one above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
