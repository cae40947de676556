"""The two ZeroMQ sockets of an engine's event publisher, on the in-memory network: a PUB, and a ROUTER for replays.

What is sent to a peer whose connection is congested is dropped, as libzmq drops what exceeds its high-water mark.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import zmq

from router.lab.emulator.kv_publisher import EventSockets
from tests.simulation.network import Network
from tests.simulation.zmtp_connection import AcceptedPeers, ZmtpConnection


class SimulatedEventSockets(EventSockets):
    """Makes the sockets of one engine."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def open_live(self) -> Any:
        return LiveSocket(self._network)

    def open_replay(self) -> Any:
        return ReplaySocket(self._network)

    def close(self) -> None:
        """The sockets are closed one by one."""


class ServingSocket:
    """A socket that peers connect to."""

    def __init__(self, network: Network) -> None:
        self.closed = False
        self.peers = AcceptedPeers(network, self.receive)
        self._endpoint = ""

    def bind(self, endpoint: str) -> None:
        """Accept connections at `tcp://host:port`."""
        self._endpoint = endpoint
        host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
        self.peers.serve(host, int(port))

    def getsockopt(self, option: int) -> bytes:
        assert option == zmq.LAST_ENDPOINT
        return self._endpoint.encode()

    def close(self, linger: int = 0) -> None:
        self.closed = True
        self.peers.close(abort=True)

    def receive(self, peer: ZmtpConnection, message: list[bytes]) -> None:
        """Handle a message of a peer."""


class LiveSocket(ServingSocket):
    """PUB: sends each message to all that have subscribed to its topic."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._topics: dict[bytes, list[bytes]] = defaultdict(list)

    def receive(self, peer: ZmtpConnection, message: list[bytes]) -> None:
        self._topics[peer.name].append(message[0][1:])  # the first byte, 1: a subscription

    def send_multipart(self, frames: Sequence[bytes]) -> None:
        for peer in self.peers:
            if any(frames[0].startswith(topic) for topic in self._topics[peer.name]):
                peer.send(frames)


class ReplaySocket(ServingSocket):
    """ROUTER: receives requests with the name of their peer, to which the answers are sent."""

    def __init__(self, network: Network) -> None:
        super().__init__(network)
        self._requests: asyncio.Queue[list[bytes]] = asyncio.Queue()

    def receive(self, peer: ZmtpConnection, message: list[bytes]) -> None:
        self._requests.put_nowait([peer.name, *message])

    async def recv_multipart(self) -> list[bytes]:
        return await self._requests.get()

    async def send_multipart(self, frames: Sequence[bytes]) -> None:
        self.peers.send(frames[0], frames[1:])
