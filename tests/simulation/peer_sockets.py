"""The ZeroMQ sockets between routers on the in-memory network, below `router/control/peers/sockets.py`.

`SimulatedContext` stands in for `zmq.Context`: a ROUTER that others connect to, and DEALERs that connect again after
each end. As of libzmq, a socket's descriptor is readable once after something arrived, and reading or sending consumes
that signal. There is no CURVE, so the socket that admits peers is never asked.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq

from tests.simulation.network import HOST, Network
from tests.simulation.zmtp_connection import AcceptedPeers, ZmtpConnection, ZmtpOwner

BEAT_S, SILENT_S = 0.5, 2.0  # as configured in SHARED_OPTIONS
CONNECT_TIMEOUT_S = 1.0
RECONNECT_S = 0.1


class SimulatedContext:
    """Makes the sockets of one router."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def socket(self, kind: int) -> SimulatedPeerSocket:
        return (RouterSocket if kind == zmq.ROUTER else DealerSocket)(self._network)

    def term(self) -> None:
        """The sockets are closed one by one."""


class SimulatedPeerSocket:
    """What both kinds have in common. `fd` is its number on the loop."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self.closed = False
        self.fd = network.loop.add_descriptor(self)
        self._messages: deque[list[bytes]] = deque()
        self._signalled = False
        self._handle: asyncio.Handle | None = None

    def setsockopt(self, option: int, value: object) -> None:
        """All options are as in `SHARED_OPTIONS` and `LINK_OPTIONS`."""

    def getsockopt(self, option: int) -> int:
        if option == zmq.FD:
            return self.fd
        assert option == zmq.EVENTS
        self._signalled = False
        return int(zmq.POLLIN) if self._messages else 0

    def recv_multipart(self, flags: int) -> list[bytes]:
        self._signalled = False
        if not self._messages:
            raise zmq.Again
        return self._messages.popleft()

    def send_multipart(self, parts: Sequence[bytes], flags: int) -> None:
        self._signalled = False
        if not self._send(parts):
            raise zmq.Again

    def bind(self, url: str) -> None:
        """Accept connections at `url`; `inproc`, where nobody connects, is ignored."""

    def close(self, linger: int | None = None) -> None:
        self.closed = True

    def watch(self, handle: asyncio.Handle | None) -> bool:
        """Run `handle` when the descriptor is readable. Return whether there was another before."""
        before, self._handle = self._handle, handle
        self._wake()
        return before is not None

    def _send(self, parts: Sequence[bytes]) -> bool:
        return False

    def _on_message(self, connection: ZmtpConnection, message: list[bytes]) -> None:
        self._messages.append(message)
        self._signalled = True
        self._wake()

    def _wake(self) -> None:
        if self._signalled and self._handle is not None:
            self._network.loop.call_soon(self._run)

    def _run(self) -> None:
        if self._signalled and self._handle is not None:
            self._handle._run()


class RouterSocket(SimulatedPeerSocket):
    """ROUTER: messages to and from peers begin with the peer's name."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._peers = AcceptedPeers(network, self._on_named)

    def bind(self, url: str) -> None:
        self._peers.serve(HOST.get(), int(url.rpartition(":")[2]), BEAT_S, SILENT_S)

    def close(self, linger: int | None = None) -> None:
        super().close(linger)
        self._peers.close(abort=linger == 0)

    def _send(self, parts: Sequence[bytes]) -> bool:
        self._peers.send(parts[0], parts[1:])
        return True

    def _on_named(self, connection: ZmtpConnection, message: list[bytes]) -> None:
        self._on_message(connection, [connection.name, *message])


class DealerSocket(SimulatedPeerSocket):
    """DEALER: one connection, opened again whenever it is lost."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._owner = ZmtpOwner(self._on_ready, self._on_message, self._on_lost)
        self._connection: ZmtpConnection | None = None
        self._task: asyncio.Task[None] | None = None

    def connect(self, url: str) -> None:
        host, _, port = url.removeprefix("tcp://").rpartition(":")
        self._task = asyncio.get_running_loop().create_task(self._keep_connected(host, int(port)))

    def close(self, linger: int | None = None) -> None:
        super().close(linger)
        if self._connection is not None:
            self._connection.close(abort=linger == 0)
        if self._task is not None:
            self._task.cancel()

    def _send(self, parts: Sequence[bytes]) -> bool:
        return self._connection is not None and self._connection.send(parts)

    def _on_ready(self, connection: ZmtpConnection) -> None:
        self._connection = connection

    def _on_lost(self, connection: ZmtpConnection) -> None:
        self._connection = None

    async def _keep_connected(self, host: str, port: int) -> None:
        while True:
            connection: Any = None
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, connection = await self._network.connect(
                        lambda: ZmtpConnection(self._owner, BEAT_S, SILENT_S), host, port
                    )
                await connection.lost
            except OSError:  # TimeoutError is one
                pass
            await asyncio.sleep(RECONNECT_S)
