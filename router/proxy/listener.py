"""A listening socket: where it is bound, TLS, and the connections behind it from start to stop.

Two listeners share one event loop and `app.py` owns the signals, so this does only the two things needed: start, so
that the bound port is known, and stop, so that running exchanges may end.
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
LAST_MOMENT_S = 1.0


@dataclass(frozen=True, slots=True)
class RequestServer:
    """What is served, and where."""

    answering: RequestHandler
    host: str
    port: int
    bounds: ConnectionLimits
    tls: ssl.SSLContext | None


def configure_server(app: Any, listen: ListenConfig, *, stall_timeout_s: float = 120.0) -> RequestServer:
    """`app` is `RequestHandler`, or any ASGI application. `stall_timeout_s`: a client that takes nothing of its answer
    for so long is cut.

    Raises `ConfigError` for certificate files that cannot be used.
    """
    bounds = ConnectionLimits(
        header_bytes=listen.header_bytes,
        header_timeout_s=listen.header_timeout_s,
        body_idle_timeout_s=listen.body_idle_timeout_s,
        keepalive_s=KEEPALIVE_S,
        stall_timeout_s=stall_timeout_s,
    )
    answering = app if isinstance(app, RequestHandler) else AsgiHandler(app)
    return RequestServer(answering, listen.host, listen.port, bounds, _context(listen.tls) if listen.tls else None)


def _context(tls: TlsConfig) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tls.cert_file, tls.key_file)
    except OSError as error:  # ssl.SSLError is one
        raise ConfigError(f"listen.tls: {error}") from error
    return context


class HttpListener:
    """Serves `serving` on the running event loop (uvloop) from `start` to `stop`. `shared`: other processes may listen
    on the same port; the kernel gives each connection to one of them, for good (Linux, SO_REUSEPORT).
    """

    def __init__(self, serving: RequestServer, handshake_timeout_s: float = 10.0, *, shared: bool = False) -> None:
        self._serving = serving
        self._shared = shared
        self._handshake_timeout_s = handshake_timeout_s
        self._connections = _Connections()
        self._tasks = Tasks("listener")
        self._server: asyncio.Server | None = None
        self.port = serving.port

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        """Listens; `port` is the bound one from here on. Raises `ConfigError` when the address cannot be had."""
        serving, loop = self._serving, asyncio.get_running_loop()
        house = ConnectionContext(serving.answering, serving.bounds, self._connections, self._tasks, loop)
        try:
            self._server = await loop.create_server(
                lambda: ClientConnection(house),
                serving.host,
                serving.port,
                ssl=serving.tls,
                ssl_handshake_timeout=self._handshake_timeout_s if serving.tls else None,
                backlog=BACKLOG,
                reuse_port=self._shared or None,
            )
        except OSError as error:
            raise ConfigError(_why_not(error, serving.host, serving.port)) from error
        self.port = self._server.sockets[0].getsockname()[1]

    def refuse(self) -> None:
        """No new connections from here on; those that are open go on."""
        if self._server is not None:
            self._server.close()

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
        await self._tasks.finish(LAST_MOMENT_S)  # what does not look whether its client is there gets a moment


class _Connections(set[ClientConnection]):
    """The open ones, and word of the last one's end (`Server.wait_closed` does not wait for it on uvloop)."""

    def __init__(self) -> None:
        super().__init__()
        self._none = asyncio.Event()

    def discard(self, connection: object) -> None:
        super().discard(connection)
        if not self:
            self._none.set()

    async def all_gone(self) -> None:
        while self:
            self._none.clear()
            await self._none.wait()


def check_port_free(host: str, port: int) -> None:
    """Nobody listens there, not even one who would share the port with us. Raises `ConfigError`."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(_why_not(error, host, port)) from error


def _why_not(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is in use on {host}: stop what listens there, or choose another port"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be used by this user: choose one above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
