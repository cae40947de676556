"""A listening socket: its address, TLS, admission of connections, and the connections from start to stop.

Two listeners share one event loop and `app.py` owns the signals, so a listener does only two things: start, so that
the bound port is known, and stop, so that running exchanges may end. It accepts connections itself (`acceptor.py`):
a connection beyond the capacity or its client's share costs only an accept and a close, and a connection in its TLS
handshake counts like any other.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from router.config.sections.listeners import ListenConfig
from router.proxy.acceptor import Acceptor, RareWarnings
from router.proxy.certificates import Certificates
from router.proxy.client_address import TrustedProxies, client_of
from router.proxy.client_connection import ClientConnection, ConnectionContext
from router.proxy.client_exchange import RequestHandler
from router.proxy.connection_limits import BODY_GRACE_S, ConnectionLimits
from router.proxy.listening_sockets import ListeningSockets, SocketShare
from router.proxy.request_head import UnfitRequest, render_refusal
from router.proxy.watched_exchange import PIECE_BYTES
from router.tasks import Tasks
from router.tenants.fair_share import FairShare, Shortage

KEEPALIVE_S = 75.0  # longer than the usual 60 s of load balancers, so that the load balancers close
LAST_GRACE_S = 1.0  # for clients to read the end of their streams, and for handlers to end
FEW_CONNECTIONS = 256
DISCARDED_PIECES = 16  # of a request that came without TLS
DESCRIPTORS_PER_REQUEST = 3  # the client's connection, and those to a pair of engines
CONNECTIONS_PER_REQUEST = 8  # most are idle; a client can make each take up to some 100 KB


@dataclass(frozen=True, slots=True)
class RequestServer:
    """A request handler, with the address at which and the clients to which it is served."""

    handler: RequestHandler
    host: str
    port: int
    limits: ConnectionLimits
    connections: int  # that may be open at once
    proxies: TrustedProxies
    certificates: Certificates | None  # None: plain HTTP


def configure_server(
    handler: RequestHandler, listen: ListenConfig, *, connections: int = FEW_CONNECTIONS, stall_timeout_s: float = 120.0
) -> RequestServer:
    """Return a server for `handler`. A client that reads nothing of its answer for `stall_timeout_s` is cut off.
    Raises `ConfigError` for certificate files that cannot be used.
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
        handler=handler,
        host=listen.host,
        port=listen.port,
        limits=limits,
        connections=connections,
        proxies=TrustedProxies(listen.trusted_proxies),
        certificates=Certificates(listen.tls) if listen.tls else None,
    )


def connection_capacity(concurrent: int, open_files: int) -> int:
    """Return how many clients may be connected: few enough that each can have a request served with `open_files`
    descriptors, and no more than are useful to keep `concurrent` requests in progress.
    """
    return max(1, min(concurrent * CONNECTIONS_PER_REQUEST, open_files // DESCRIPTORS_PER_REQUEST))


class HttpListener:
    """Serves `server` on the running event loop (uvloop) from `start` to `stop`, on sockets of `share`; None: on
    its own sockets.
    """

    def __init__(
        self, server: RequestServer, handshake_timeout_s: float = 10.0, *, share: SocketShare | None = None
    ) -> None:
        self._config = server
        self._acceptor = Acceptor(share or SocketShare(ListeningSockets()), self._admit)
        self._handshake_timeout_s = handshake_timeout_s
        self._connections = _Connections(server.connections)
        self._tasks = Tasks("listener")
        self._context: ConnectionContext | None = None  # None: not started, or stopped
        self._renewal: asyncio.Task[None] | None = None
        self._warn = RareWarnings().warn
        self.refused: Counter[str] = Counter()  # connections, by reason: total, share, handshake
        self.port = server.port

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def bind(self) -> None:
        """Take over or bind the sockets and set `port` to the bound one. Raises `ConfigError` when the address
        cannot be bound.
        """
        self.port = await self._acceptor.bind(self._config.host, self._config.port)

    async def start(self) -> None:
        """Accept connections. Raises `ConfigError` when the address cannot be bound, unless `bind` was called
        before.
        """
        config, loop = self._config, asyncio.get_running_loop()
        if not self._acceptor.bound:
            await self.bind()
        self._context = ConnectionContext(config.handler, config.limits, self._connections.remove, config.proxies, loop)
        self._acceptor.start()
        if config.certificates is not None:
            self._renewal = self._tasks.supervise("certificates", config.certificates.follow)

    def sockets_of(self, process: int) -> list[socket.socket]:
        return self._acceptor.sockets_of(process)

    def serve_for(self, process: int, on: bool) -> None:
        """Accept from the sockets of another process, which does not accept; with `on` False, no longer."""
        self._acceptor.serve_for(process, on)

    def _admit(self, accepted: socket.socket, host: str) -> None:
        """Serve a connection from `host`, or close it at once if it exceeds a limit."""
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
        answering = None if certificates is None else _duplicate(accepted)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection,
                accepted,
                ssl=None if certificates is None else certificates.context,
                ssl_handshake_timeout=None if certificates is None else self._handshake_timeout_s,
            )
        except OSError as error:
            self.refused["handshake"] += 1
            if answering is not None and isinstance(error, ssl.SSLError) and error.reason == "HTTP_REQUEST":
                _refuse_plain(answering)
        finally:
            if answering is not None:
                answering.close()
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

    def stop_accepting(self) -> None:
        """Accept no new connections; open ones continue."""
        self._acceptor.close()

    def retire(self, idle_s: float) -> None:
        """End each connection, existing or new, with its next answer, which announces the close, or once it has
        been idle for `idle_s`.
        """
        if self._context is not None:
            limits = self._config.limits._replace(keepalive_s=idle_s, requests_last=True)
            self._context = self._context._replace(limits=limits)
            for connection in list(self._connections):
                connection.retire(limits)

    async def stop(self, grace_s: float) -> None:
        """Accept no new connections; running exchanges have `grace_s` to end. Then streams receive their last
        events, and clients that do not read these within `LAST_GRACE_S` are cut off.
        """
        self.stop_accepting()
        if self._context is None:
            return
        self._context = None
        await asyncio.sleep(0)  # then the connections just accepted have a transport
        for connection in list(self._connections):
            connection.shutdown()
        if not await self._connections.wait_empty(grace_s):
            for connection in list(self._connections):
                connection.expire()
            if not await self._connections.wait_empty(LAST_GRACE_S):
                for connection in list(self._connections):
                    if connection.made:
                        connection.reset()
                await self._connections.wait_empty(None)
        if self._renewal is not None:
            self._renewal.cancel()
        await self._tasks.finish(LAST_GRACE_S)  # for handlers that do not watch their client


def _duplicate(accepted: socket.socket) -> socket.socket | None:
    """Return another descriptor of the connection, which a failed handshake leaves open; None if there is none left."""
    try:
        return accepted.dup()
    except OSError:
        return None


def _refuse_plain(connection: socket.socket) -> None:
    """Answer a request that came without TLS. What has arrived of it is read: closing would reset the connection, and
    the client might never see the answer.
    """
    with suppress(OSError):
        connection.setblocking(False)
        connection.send(render_refusal(UnfitRequest(400, "this port serves HTTPS: the URL begins with https://")))
        connection.shutdown(socket.SHUT_WR)
        for _ in range(DISCARDED_PIECES):
            if not connection.recv(PIECE_BYTES):
                return


class _Connections(set[ClientConnection]):
    """The connections, from before their handshake until they are lost, each counted in its client's share.

    `wait_empty` waits for the last one to end (`Server.wait_closed` cannot on uvloop).
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

    async def wait_empty(self, seconds: float | None) -> bool:
        """Return whether the last connection ends within `seconds` (None: wait forever)."""
        try:
            async with asyncio.timeout(seconds):
                while self:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True
