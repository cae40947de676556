"""One connection between two simulated ZeroMQ sockets, from its greeting to its end (RFC 23/ZMTP 3.0)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from router.backends.feeds.zmtp import COMMAND, GREETING, LONG, MORE, PING, PONG

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
        flags = [MORE] * (len(frames) - 1) + [0]
        self._transport.write(b"".join(map(_encode_frame, frames, flags)))
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


def _encode_frame(content: bytes, more: int) -> bytes:
    if len(content) > 255:
        return bytes((LONG | more,)) + len(content).to_bytes(8, "big") + content
    return bytes((more, len(content))) + content
