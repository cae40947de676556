"""A listening socket: where it is bound, TLS, who gets a connection, and the connections from start to stop.

Two listeners share one event loop and `app.py` owns the signals, so this does only two things: start, so that the bound
port is known, and stop, so that running exchanges may end. It accepts by itself: a connection beyond the capacity or
its client's share costs no more than to accept and close it, one in its TLS handshake counts like any other, and
neither a flood of connections nor a lack of file descriptors keeps the event loop from its other work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import Counter
from dataclasses import dataclass
from itertools import chain

from router.config.sections.listeners import ListenConfig
from router.proxy.certificates import Certificates
from router.proxy.client_address import TrustedProxies, client_of
from router.proxy.client_connection import ClientConnection, ConnectionContext
from router.proxy.client_exchange import RequestHandler
from router.proxy.connection_limits import BODY_GRACE_S, ConnectionLimits
from router.proxy.listening_sockets import ListeningSockets
from router.tasks import Tasks
from router.tenants.fair_share import FairShare, Shortage

log = logging.getLogger("warmroute.web")

KEEPALIVE_S = 75.0  # longer than the usual 60 s of load balancers, so that they are the ones to close
ACCEPTS_AT_ONCE = 64  # connections, before the event loop turns to something else
ACCEPT_RETRY_S = 1.0  # after the system had no descriptor for a connection
WARN_INTERVAL_S = 60.0  # between two lines about connections that are not served
LAST_GRACE_S = 1.0  # for clients to read the end of their streams, and for handlers to end
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
    handler: RequestHandler, listen: ListenConfig, *, connections: int = FEW_CONNECTIONS, stall_timeout_s: float = 120.0
) -> RequestServer:
    """Return how `handler` is served. A client that reads nothing of its answer for `stall_timeout_s` is cut off.
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
    """Return how many clients may be connected: so many that with `open_files` descriptors each can have a request
    served, and no more than serve to keep `concurrent` requests in progress.
    """
    return max(1, min(concurrent * CONNECTIONS_PER_REQUEST, open_files // DESCRIPTORS_PER_REQUEST))


class HttpListener:
    """Serves `server` on the running event loop (uvloop) from `start` to `stop`, on one of `sockets`.

    `processes` serve the same address, each with a socket of its own (Linux, SO_REUSEPORT: the kernel gives each
    connection to one of them, for good). This one binds all sockets, keeps the first, and accepts from those of the
    others for as long as they do not: a connection in the backlog of a process that dies is not lost.
    """

    def __init__(
        self,
        server: RequestServer,
        handshake_timeout_s: float = 10.0,
        *,
        sockets: ListeningSockets | None = None,
        processes: int = 1,
    ) -> None:
        self._config = server
        self._listening = sockets or ListeningSockets()
        self._processes = processes
        # One by one where others may accept from the same socket: a burst of connections is shared out among them.
        self._accepts_at_once = 1 if processes > 1 or self._listening.handed_over else ACCEPTS_AT_ONCE
        self._handshake_timeout_s = handshake_timeout_s
        self._connections = _Connections(server.connections)
        self._tasks = Tasks("listener")
        self._sockets: list[list[socket.socket]] = []  # of each process
        self._served = set(range(processes))  # processes whose sockets this one accepts from
        self._accepting: set[socket.socket] = set()
        self._context: ConnectionContext | None = None  # None: not started, or stopped
        self._renewal: asyncio.Task[None] | None = None
        self._warn_at = 0.0  # not before; seconds of the event loop
        self.refused: Counter[str] = Counter()  # connections, by why: total, share, handshake
        self.port = server.port

    @property
    def connections(self) -> int:
        return len(self._connections)

    async def bind(self) -> None:
        """Take or bind the sockets; `port` is the bound one from here on. Raises `ConfigError` when the address cannot
        be bound.
        """
        self._sockets = await self._listening.open(self._config.host, self._config.port, self._processes)
        self.port = self._sockets[0][0].getsockname()[1]

    async def start(self) -> None:
        """Accept connections. Raises `ConfigError` when the address cannot be bound, unless `bind` has done that."""
        config, loop = self._config, asyncio.get_running_loop()
        if not self._sockets:
            await self.bind()
        self._context = ConnectionContext(config.handler, config.limits, self._connections.remove, config.proxies, loop)
        self._follow_sockets()
        if config.certificates is not None:
            self._renewal = self._tasks.supervise("certificates", config.certificates.follow)

    def sockets_of(self, process: int) -> list[socket.socket]:
        return self._sockets[process]

    def serve_for(self, process: int, on: bool) -> None:
        """Accept from the sockets of another process, which does not; or no longer."""
        (self._served.add if on else self._served.discard)(process)
        if self._context is not None:
            self._follow_sockets()

    def _follow_sockets(self) -> None:
        loop = asyncio.get_running_loop()
        wanted = {one for n, group in enumerate(self._sockets) if n in self._served for one in group}
        for listening in self._accepting - wanted:
            loop.remove_reader(listening)
        for listening in wanted - self._accepting:
            loop.add_reader(listening, self._accept, listening)
        self._accepting = wanted

    def _accept(self, listening: socket.socket) -> None:
        """Accept what waits, up to a number."""
        for _ in range(self._accepts_at_once):
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
        if listening in self._accepting:
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
        for listening in self._accepting:
            loop.remove_reader(listening)
        for listening in chain(*self._sockets):
            listening.close()
        self._accepting.clear()
        self._sockets.clear()

    def retire(self, idle_s: float) -> None:
        """Let each connection end with its next answer, which says so, or once it was idle for `idle_s`; also those
        that are still to come.
        """
        if self._context is not None:
            limits = self._config.limits._replace(keepalive_s=idle_s, requests_last=True)
            self._context = self._context._replace(limits=limits)
            for connection in list(self._connections):
                connection.retire(limits)

    async def stop(self, grace_s: float) -> None:
        """Accept no new connections; running exchanges have `grace_s` to end. Then streams get their last events, and
        clients that do not read those within `LAST_GRACE_S` are cut off.
        """
        self.stop_accepting()
        if self._context is None:
            return
        self._context = None
        await asyncio.sleep(0)  # what was just accepted has a transport then
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

    async def wait_empty(self, seconds: float | None) -> bool:
        """Return whether the last one ends within `seconds` (None: wait for ever)."""
        try:
            async with asyncio.timeout(seconds):
                while self:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True
