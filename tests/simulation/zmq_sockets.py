"""The two ZeroMQ sockets of an engine's event publisher, on the in-memory network: a PUB, and a ROUTER for replays.

What is sent to a peer whose connection is congested is dropped, as
libzmq drops what exceeds its high-water mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import zmq

from router.backends.feeds.zmtp import COMMAND, GREETING, LONG, MORE, PING, PONG, parse_endpoint
from router.lab.emulator.kv_publisher import EventSockets
from tests.simulation.network import SimulatedServer

HIGH_WATER_BYTES = 256 * 1024
PEER_READY = b"\x05READY"


class SimulatedEventSockets(EventSockets):
    """Makes the sockets of one engine."""

    def __init__(self) -> None:
        """Without a ZeroMQ context."""

    def open_live(self) -> Any:
        return PublisherSocket()

    def open_replay(self) -> Any:
        return ReplaySocket()

    def close(self) -> None:
        """The sockets are closed one by one."""


class ZmqServer:
    """A socket that peers connect to."""

    def __init__(self) -> None:
        self.closed = False
        self.peers: dict[bytes, _Peer] = {}
        self._endpoint = ""
        self._server: SimulatedServer | None = None
        self._count = 0

    def bind(self, endpoint: str) -> None:
        """Accept connections at `endpoint`; port 0 is not possible."""
        self._endpoint = endpoint
        host, port = parse_endpoint(endpoint)
        self._server = asyncio.get_running_loop().network.serve(lambda: _Peer(self), host, int(port))  # type: ignore[attr-defined]

    def getsockopt(self, option: int) -> bytes:
        assert option == zmq.LAST_ENDPOINT
        return self._endpoint.encode()

    def close(self, linger: int = 0) -> None:
        self.closed = True
        if self._server is not None:
            self._server.close()
        for peer in list(self.peers.values()):
            peer.transport.abort()

    def add(self, peer: _Peer) -> bytes:
        """Register a peer that has finished its handshake, and return its name."""
        self._count += 1
        name = self._count.to_bytes(5, "big")
        self.peers[name] = peer
        return name

    def receive(self, peer: bytes, message: list[bytes]) -> None:
        """Handle a message of a peer."""


class PublisherSocket(ZmqServer):
    """PUB: sends each message to all that have subscribed to its topic."""

    def __init__(self) -> None:
        super().__init__()
        self._topics: dict[bytes, set[bytes]] = {}

    def receive(self, peer: bytes, message: list[bytes]) -> None:
        topics = self._topics.setdefault(peer, set())
        (topics.add if message[0][:1] == b"\1" else topics.discard)(message[0][1:])

    def send_multipart(self, frames: Sequence[bytes]) -> None:
        for name, peer in self.peers.items():
            if any(frames[0].startswith(topic) for topic in self._topics.get(name, ())):
                peer.send(frames)


class ReplaySocket(ZmqServer):
    """ROUTER: receives requests with the name of their peer, to which the answers are sent."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: asyncio.Queue[list[bytes]] = asyncio.Queue()

    def receive(self, peer: bytes, message: list[bytes]) -> None:
        self._requests.put_nowait([peer, *message])

    async def recv_multipart(self) -> list[bytes]:
        return await self._requests.get()

    async def send_multipart(self, frames: Sequence[bytes]) -> None:
        if (peer := self.peers.get(frames[0])) is not None:
            peer.send(frames[1:])


class _Peer(asyncio.Protocol):
    """One connection, from the peer's greeting to its end."""

    transport: Any

    def __init__(self, server: ZmqServer) -> None:
        self._server = server
        self._buffer = bytearray()
        self._message: list[bytes] = []
        self._greeted = False
        self._name: bytes | None = None

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        ready = PEER_READY + b"\x0bSocket-Type\0\0\0\3PUB"
        transport.write(GREETING + bytes((COMMAND, len(ready))) + ready)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._name is not None:
            self._server.peers.pop(self._name, None)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        if not self._greeted and len(self._buffer) >= len(GREETING):
            self._greeted = True
            del self._buffer[: len(GREETING)]
        while self._greeted and (frame := self._take_frame()) is not None:
            flags, content = frame
            if flags & COMMAND:
                self._on_command(content)
                continue
            self._message.append(content)
            if not flags & MORE:
                message, self._message = self._message, []
                assert self._name is not None, "a message before READY"
                self._server.receive(self._name, message)

    def send(self, frames: Sequence[bytes]) -> None:
        if self.transport.get_write_buffer_size() < HIGH_WATER_BYTES:
            flags = [MORE] * (len(frames) - 1) + [0]
            self.transport.write(b"".join(map(_encode_frame, frames, flags)))

    def _on_command(self, content: bytes) -> None:
        if content.startswith(PEER_READY):
            self._name = self._server.add(self)
        elif content.startswith(b"\x04PING"):
            pong = PONG + content[len(PING) :]
            self.transport.write(bytes((COMMAND, len(pong))) + pong)

    def _take_frame(self) -> tuple[int, bytes] | None:
        """Return flags and content of the next frame; None if it is not complete."""
        buffer = self._buffer
        head = 9 if buffer and buffer[0] & LONG else 2
        if len(buffer) < head:
            return None
        end = head + int.from_bytes(buffer[1:head], "big")
        if len(buffer) < end:
            return None
        flags, content = buffer[0], bytes(buffer[head:end])
        del buffer[:end]
        return flags, content


def _encode_frame(content: bytes, more: int) -> bytes:
    if len(content) > 255:
        return bytes((LONG | more,)) + len(content).to_bytes(8, "big") + content
    return bytes((more, len(content))) + content
