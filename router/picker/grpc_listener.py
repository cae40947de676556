"""A listener for gRPC calls on the router's event loop: one address, with or without TLS, from `bind` to `stop`."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress

from router.clock import Clock
from router.errors import ConfigError
from router.picker.grpc_stream import GrpcHandler, GrpcStream
from router.picker.http2 import GrpcConnection
from router.picker.peers import QUESTIONS, PeerBounds, PeerConnections
from router.proxy.acceptor import Acceptor
from router.proxy.listening_sockets import SocketShare
from router.tasks import Tasks

log = logging.getLogger("warmroute.grpc")

FOR_QUESTIONS = PeerBounds(64 * 1024, 1024 * 1024, 128, 100, QUESTIONS)
"""Bounds for probes and KEDA, whose messages consist of a few names."""
HANDSHAKE_S = 10.0
SENT_LAST_S = 0.02  # for the last bytes to be sent before connections are cut off

Services = Mapping[bytes, Callable[[GrpcStream], GrpcHandler]]
"""Factories of the handlers of calls, by the path of the call."""


class GrpcListener:
    """Serves `services` at `host` and `port`. `setting` names the port in errors. `tls` None: clear text. Each
    process of `share` has the full bounds for itself.
    """

    def __init__(
        self,
        setting: str,
        host: str,
        port: int,
        services: Services,
        share: SocketShare,
        clock: Clock,
        bounds: PeerBounds = FOR_QUESTIONS,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.port = port
        self._setting = setting
        self._host = host
        self._services = services
        self._acceptor = Acceptor(share, self._admit)
        self._peers = PeerConnections(bounds, clock.now)
        self._tls = tls
        self._tasks = Tasks("grpc listener")

    async def bind(self) -> None:
        """Bind the address and set `port` to the bound one. Raises `ConfigError` when the address cannot be
        bound.
        """
        try:
            self.port = await self._acceptor.bind(self._host, self.port)
        except ConfigError as error:
            raise ConfigError(f"{self._setting}: {error}") from error

    async def start(self) -> None:
        """Accept connections. Raises `ConfigError` when the address cannot be bound, unless `bind` was called
        before.
        """
        if not self._acceptor.bound:
            await self.bind()
        self._acceptor.start()
        log.info("%s: gRPC on %s:%d", self._setting, self._host, self.port)

    def serve_for(self, process: int, on: bool) -> None:
        """Accept from the sockets of another process, which does not accept; with `on` False, no longer."""
        self._acceptor.serve_for(process, on)

    def _admit(self, accepted: socket.socket, _: str) -> None:
        self._tasks.spawn("handshake", self._connect(accepted))

    async def _connect(self, accepted: socket.socket) -> None:
        with suppress(OSError):  # the peer left, or its handshake failed or took too long
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: GrpcConnection(self._services, self._peers),
                accepted,
                ssl=self._tls,
                ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S,
            )

    def stop_accepting(self) -> None:
        """Accept no new connections; open ones continue."""
        self._acceptor.close()

    def retire(self, idle_s: float) -> None:
        """Make peers open new connections for their next calls, at once."""
        for connection in self._peers.connections:
            connection.retire()

    async def stop(self, grace_s: float) -> None:
        """Stop at once, and cut off the open calls, which are streams without an end."""
        self.stop_accepting()
        for connection in list(self._peers.connections):
            connection.drain()
            connection.close()
        await asyncio.sleep(SENT_LAST_S)
        for connection in list(self._peers.connections):
            connection.abort()
        await self._tasks.close()
