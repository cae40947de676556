"""A listening socket: where it is bound, TLS, who gets a connection, and the connections from start to stop.

Two listeners share one event loop and `app.py` owns the signals, so this does only two things: start, so that the bound
port is known, and stop, so that running exchanges may end. It accepts by itself: a connection beyond the capacity or
its client's share costs no more than to accept and close it, one in its TLS handshake counts like any other, and
neither a flood of connections nor a lack of file descriptors keeps the event loop from its other work.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import Counter
from dataclasses import dataclass
from typing import Any

from router.config.sections.listeners import ListenConfig
from router.errors import ConfigError
from router.proxy.asgi import AsgiHandler
from router.proxy.certificates import Certificates
from router.proxy.client_address import TrustedProxies, client_of
from router.proxy.client_connection import (
    BODY_GRACE_S,
    ClientConnection,
    ConnectionContext,
    ConnectionLimits,
    RequestHandler,
)
from router.proxy.fair_share import FairShare, Shortage
from router.tasks import Tasks

log = logging.getLogger("warmroute.web")

KEEPALIVE_S = 75.0  # longer than the usual 60 s of load balancers, so that they are the ones to close
BACKLOG = 2048
ACCEPTS_AT_ONCE = 64  # connections, before the event loop turns to something else
ACCEPT_RETRY_S = 1.0  # after the system had no descriptor for a connection
WARN_INTERVAL_S = 60.0  # between two lines about connections that are not served
LAST_GRACE_S = 1.0
FEW_CONNECTIONS = 256
DESCRIPTORS_PER_REQUEST = 3  # the client's connection, and those to a pair of engines
CONNECTIONS_PER_REQUEST = 8  # most are idle; each takes up to some 100 KB if its client wants it to


@dataclass(frozen=True, slots=True)
class RequestServer:
    """A request handler, and where and to whom it is served."""

    handler: RequestHandler
    host: str
    port: int
    limits: ConnectionLimits
    connections: int  # that may be open at once
    proxies: TrustedProxies
    certificates: Certificates | None  # None: plain HTTP


def configure_server(
    app: Any, listen: ListenConfig, *, connections: int = FEW_CONNECTIONS, stall_timeout_s: float = 120.0
) -> RequestServer:
    """Return how `app` (a `RequestHandler`, or any ASGI application) is served. A client that reads nothing of its
    answer for `stall_timeout_s` is cut off. Raises `ConfigError` for certificate files that cannot be used.
    """
    limits = ConnectionLimits(
        header_bytes=listen.header_bytes,
        header_timeout_s=listen.header_timeout_s,
        body_idle_timeout_s=listen.body_idle_timeout_s,
        body_grace_s=max(BODY_GRACE_S, listen.body_idle_timeout_s),
        keepalive_s=KEEPALIVE_S,
        stall_timeout_s=stall_timeout_s,
    )
    return RequestServer(
        handler=app if isinstance(app, RequestHandler) else AsgiHandler(app),
        host=listen.host,
        port=listen.port,
        limits=limits,
        connections=connections,
        proxies=TrustedProxies(listen.trusted_proxies),
        certificates=Certificates(listen.tls) if listen.tls else None,
    )


def connection_capacity(concurrent: int, open_files: int) -> int:
    """Return how many clients may be connected: so many that with `open_files` descriptors each can have a request
    served, and no more than serve to keep `concurrent` requests in progress.
    """
    return max(1, min(concurrent * CONNECTIONS_PER_REQUEST, open_files // DESCRIPTORS_PER_REQUEST))


class HttpListener:
    """Serves `server` on the running event loop (uvloop) from `start` to `stop`. `shared`: other processes may listen
    on the same port; the kernel gives each connection to one of them, for good (Linux, SO_REUSEPORT).
    """

    def __init__(self, server: RequestServer, handshake_timeout_s: float = 10.0, *, shared: bool = False) -> None:
        self._config = server
        self._shared = shared
        self._handshake_timeout_s = handshake_timeout_s
        self._connections = _Connections(server.connections)
        self._tasks = Tasks("listener")
        self._sockets: list[socket.socket] = []
        self._context: ConnectionContext | None = None  # None: not started, or stopped
        self._renewal: asyncio.Task[None] | None = None
        self._warn_at = 0.0  # not before; seconds of the event loop
        self.refused: Counter[str] = Counter()  # connections, by why: total, share, handshake
        self.port = server.port

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def start(self) -> None:
        """Listen; `port` is the bound one from here on. Raises `ConfigError` when the address cannot be bound."""
        config, loop = self._config, asyncio.get_running_loop()
        self._context = ConnectionContext(config.handler, config.limits, self._connections, config.proxies, loop)
        try:
            found = await loop.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            for family, _, _, _, address in found:
                listening = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=self._shared)
                listening.setblocking(False)
                self._sockets.append(listening)
                loop.add_reader(listening, self._accept, listening)
        except OSError as error:
            self.stop_accepting()
            raise ConfigError(_bind_error(error, config.host, config.port)) from error
        self.port = self._sockets[0].getsockname()[1]
        if config.certificates is not None:
            self._renewal = self._tasks.supervise("certificates", config.certificates.follow)

    def _accept(self, listening: socket.socket) -> None:
        """Accept what waits, up to a number."""
        for _ in range(ACCEPTS_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory: what waits goes on waiting
                self._warn("connections cannot be accepted, trying again every %g s: %s", ACCEPT_RETRY_S, error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_RETRY_S, self._accept_again, listening)
                return
            self._admit(accepted, address[0])

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._sockets:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)

    def _admit(self, accepted: socket.socket, host: str) -> None:
        """Serve a connection from `host`, or close it at once where that is one too many."""
        assert self._context is not None
        client = client_of(host)
        shortage = self._connections.shares.take(client, 1)
        if shortage is not None:
            accepted.close()
            self._note_refusal(shortage, client)
            return
        connection = ClientConnection(self._context, client, proxied=self._config.proxies.trusts(host))
        self._connections.add(connection)
        connection.task = self._tasks.spawn("client", self._serve(connection, accepted))

    async def _serve(self, connection: ClientConnection, accepted: socket.socket) -> None:
        certificates = self._config.certificates
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=None if certificates is None else certificates.context,
                ssl_handshake_timeout=None if certificates is None else self._handshake_timeout_s,
            )
        except OSError:
            self.refused["handshake"] += 1
        finally:
            if not connection.made:
                self._connections.remove(connection)
        if connection.made:
            await connection.serve()

    def _note_refusal(self, shortage: Shortage, client: str) -> None:
        self.refused[shortage.value] += 1
        shares = self._connections.shares
        if shortage is Shortage.TOTAL:
            self._warn("a connection of %s is refused: all %d that may be open are", client, shares.capacity)
        else:
            held = shares.held(client)
            self._warn("a connection of %s is refused: its %d are its share of %d", client, held, shares.capacity)

    def _warn(self, message: str, *values: object) -> None:
        """Log a line, unless there was one a short while ago."""
        now = asyncio.get_running_loop().time()
        if now >= self._warn_at:
            self._warn_at = now + WARN_INTERVAL_S
            log.warning(message, *values)

    def stop_accepting(self) -> None:
        """Accept no new connections; those that are open go on."""
        loop = asyncio.get_running_loop()
        for listening in self._sockets:
            loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    async def stop(self, grace_s: float) -> None:
        """Accept no new connections; running exchanges have `grace_s` to end, then they are cut off."""
        if self._context is None:
            return
        self._context = None
        self.stop_accepting()
        await asyncio.sleep(0)  # what was just accepted has a transport then
        for connection in list(self._connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(grace_s):
                await self._connections.wait_empty()
        except TimeoutError:
            for connection in list(self._connections):
                if connection.made:
                    connection.reset()
            await self._connections.wait_empty()
        if self._renewal is not None:
            self._renewal.cancel()
        await self._tasks.finish(LAST_GRACE_S)  # for handlers that do not watch their client


class _Connections(set[ClientConnection]):
    """The connections, from before their handshake until they are lost, each counted in its client's share.

    It has a wait for the last one to end (`Server.wait_closed` has none on uvloop).
    """

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.shares = FairShare(capacity)
        self._empty = asyncio.Event()

    def remove(self, connection: ClientConnection) -> None:
        super().remove(connection)
        self.shares.give_back(connection.client, 1)
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
