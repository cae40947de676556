"""Connections between simulated ZeroMQ sockets, from the greeting to the end (RFC 23/ZMTP 3.0)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from router.backends.feeds.zmtp import COMMAND, GREETING, LONG, MORE, PING, PONG, encode_message
from tests.simulation.network import Network, SimulatedServer

HIGH_WATER_BYTES = 256 * 1024
READY = b"\x05READY"


class ZmtpOwner(NamedTuple):
    """The functions by which a connection notifies the socket that it belongs to."""

    on_ready: Callable[[ZmtpConnection], None]
    on_message: Callable[[ZmtpConnection, list[bytes]], None]
    on_lost: Callable[[ZmtpConnection], None]


class ZmtpConnection(asyncio.Protocol):
    """With `beat_s` it sends a heartbeat so often, and is lost after `silent_s` without a byte; 0: neither."""

    def __init__(self, owner: ZmtpOwner, beat_s: float = 0.0, silent_s: float = 0.0) -> None:
        self.name = b""  # for the socket that it belongs to
        self._owner = owner
        self._beat_s, self._silent_s = beat_s, silent_s
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._buffer = bytearray()
        self._message: list[bytes] = []
        self._greeted = self._ready = False
        self._received_s = self._loop.time()
        self.lost = self._loop.create_future()

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message. Return False, with nothing sent, before the handshake and while too much waits."""
        if not self._ready or self._transport.is_closing():
            return False
        if self._transport.get_write_buffer_size() > HIGH_WATER_BYTES:
            return False
        self._transport.write(encode_message(frames))
        return True

    def close(self, *, abort: bool) -> None:
        """End the connection; without `abort`, what waits is still sent."""
        if self._transport is not None:
            (self._transport.abort if abort else self._transport.close)()

    # called by the loop

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._received_s = self._loop.time()
        ready = READY + b"\x0bSocket-Type\0\0\0\6ROUTER"
        transport.write(GREETING + bytes((COMMAND, len(ready))) + ready)
        if self._beat_s:
            self._beat()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ready = False
        if not self.lost.done():
            self.lost.set_result(None)
        self._owner.on_lost(self)

    def data_received(self, data: bytes) -> None:
        self._received_s = self._loop.time()
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
                self._owner.on_message(self, message)

    def _on_command(self, content: bytes) -> None:
        if content.startswith(READY):
            self._ready = True
            self._owner.on_ready(self)
        elif content.startswith(b"\x04PING"):
            self._command(PONG + content[len(PING) :])

    def _command(self, content: bytes) -> None:
        self._transport.write(bytes((COMMAND, len(content))) + content)

    def _beat(self) -> None:
        if self._transport.is_closing():
            return
        if self._loop.time() - self._received_s > self._silent_s:
            self._transport.abort()
            return
        self._command(PING)
        self._loop.call_later(self._beat_s, self._beat)

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


class AcceptedPeers:
    """The connections that a socket has accepted and whose handshake is over; each gets a name."""

    def __init__(self, network: Network, on_message: Callable[[ZmtpConnection, list[bytes]], None]) -> None:
        self._network = network
        self._owner = ZmtpOwner(self._on_ready, on_message, self._on_lost)
        self._by_name: dict[bytes, ZmtpConnection] = {}
        self._server: SimulatedServer | None = None
        self._count = 0

    def __iter__(self) -> Iterator[ZmtpConnection]:
        return iter(self._by_name.values())

    def serve(self, host: str, port: int, beat_s: float = 0.0, silent_s: float = 0.0) -> None:
        """Accept connections from now on."""
        self._server = self._network.serve(lambda: ZmtpConnection(self._owner, beat_s, silent_s), host, port)

    def send(self, name: bytes, frames: Sequence[bytes]) -> None:
        """Send a message to the peer of this name, if it is still connected."""
        if (peer := self._by_name.get(name)) is not None:
            peer.send(frames)

    def close(self, *, abort: bool) -> None:
        """Accept no more, and end all connections; without `abort`, what waits is still sent."""
        if self._server is not None:
            self._server.close()
        for peer in list(self):
            peer.close(abort=abort)

    def _on_ready(self, peer: ZmtpConnection) -> None:
        self._count += 1
        peer.name = self._count.to_bytes(5, "big")
        self._by_name[peer.name] = peer

    def _on_lost(self, peer: ZmtpConnection) -> None:
        self._by_name.pop(peer.name, None)
