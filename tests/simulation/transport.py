"""One end of a simulated connection: an asyncio transport with the parts of a kernel's socket that are observable.

Bytes are sent while the other end's window has room (`WINDOW_BYTES` sent and not read there); the rest waits in the
transport, which pauses its protocol above the high-water mark. Bytes that have arrived wait until the protocol reads:
a connection with unread bytes is reset when it is closed, and what was read before a reset is not lost.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import os
import socket
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.network import Network, Pipe

WINDOW_BYTES = 64 * 1024
HIGH_WATER_BYTES = 64 * 1024
BROKEN = ConnectionResetError(errno.ECONNRESET, "the other end reset the connection")


class Packet(NamedTuple):
    """`read`: the receiver has read `credit` bytes."""

    kind: Literal["data", "read", "end", "reset"]
    data: bytes = b""
    credit: int = 0


class SocketOfEnd:
    """The part of a socket that protocols use. Its descriptor is readable while bytes wait to be read."""

    def __init__(self, end: End) -> None:
        self._end = end
        self._fd: int | None = None

    def fileno(self) -> int:
        if self._fd is None:
            self._fd = os.eventfd(int(self._end.unread), os.EFD_NONBLOCK)
        return self._fd

    def mark(self) -> None:
        """Make the descriptor readable exactly if bytes, or the end, wait to be read."""
        if self._fd is not None:
            os.eventfd_write(self._fd, 1)
            if not self._end.unread:
                os.eventfd_read(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def getpeername(self) -> tuple[str, int]:
        return self._end.remote

    def getsockname(self) -> tuple[str, int]:
        return self._end.local

    def setsockopt(self, level: int, option: int, value: object) -> None:
        if option == socket.SO_LINGER:
            self._end.resets = True


class End(asyncio.Transport):
    """A transport on `local`, whose bytes arrive at `remote`. `attach` connects it to its protocol."""

    def __init__(self, network: Network, pipe: Pipe, local: tuple[str, int], remote: tuple[str, int]) -> None:
        super().__init__()
        self._network = network
        self._loop = network.loop
        self._pipe = pipe
        self.local, self.remote = local, remote
        self._socket = SocketOfEnd(self)
        self._protocol: Any = None
        self._context: contextvars.Context | None = None
        self._unsent = bytearray()
        self._sent = 0  # bytes that the other end has not read
        self._arrived = bytearray()
        self._read_bytes = 0  # since the other end was last notified
        self._ended = False  # the other end sends no more
        self.error: Exception | None = None
        self.resets = False  # closing resets the connection
        self._paused_reading = self._paused_writing = False
        self._closing = self._gone = self._end_sent = self._end_wanted = self._end_read = False
        self._read_due = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4

    @property
    def host(self) -> str:
        return self.local[0]

    @property
    def unread(self) -> bool:
        """True while something that the protocol has not received waits."""
        return bool(self._arrived) or self.error is not None or (self._ended and not self._end_read)

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Give the connection to its protocol, which runs in the current context."""
        self._protocol = protocol
        self._context = contextvars.copy_context()
        protocol.connection_made(self)
        self._read_soon()

    # called by the pipe

    def receive(self, packet: Packet) -> None:
        """Handle what arrived from the other end."""
        if packet.kind == "read":
            self._sent -= packet.credit
            self._flush()
        elif packet.kind == "reset":
            self.fail(BROKEN)
        elif self._gone:
            if packet.kind == "data":
                self._pipe.put(Packet("reset"))
        else:
            if packet.kind == "data":
                self._arrived += packet.data
            else:
                self._ended = True
            self._socket.mark()
            self._read_soon()

    def fail(self, error: Exception) -> None:
        """Break the connection; bytes that have arrived are still read."""
        if not self._gone and self.error is None:
            self.error = error
            self._unsent.clear()
            self._socket.mark()
            if self._closing:
                self._call(self._leave, error)
            else:
                self._read_soon()

    def vanish(self) -> None:
        """Lose the connection without a packet to the other end: this host has lost its power."""
        self._leave(ConnectionResetError(errno.ECONNRESET, "this host crashed"))

    def reset(self) -> None:
        """Lose the connection and reset the other end."""
        if not self._gone:
            self._pipe.put(Packet("reset"))
            self.vanish()

    # reading

    def _read_soon(self) -> None:
        if not (self._read_due or self._paused_reading or self._closing or self._protocol is None) and self.unread:
            self._read_due = True
            self._call(self._read)

    def _read(self) -> None:
        self._read_due = False
        if self._paused_reading or self._closing:
            return
        if self._arrived:
            data = bytes(self._arrived)
            self._arrived.clear()
            self._socket.mark()
            self._read_bytes += len(data)
            if self._read_bytes >= WINDOW_BYTES // 4:
                self._pipe.put(Packet("read", credit=self._read_bytes))
                self._read_bytes = 0
            self._pass(data)
            self._read_soon()
        elif self.error is not None:
            self._leave(self.error)
        elif self._ended and not self._end_read:
            self._end_read = True
            self._socket.mark()
            if not self._protocol.eof_received():
                self.close()

    def _pass(self, data: bytes) -> None:
        """Pass bytes to the protocol, of either kind that asyncio has."""
        if not isinstance(self._protocol, asyncio.BufferedProtocol):
            self._protocol.data_received(data)
            return
        while data:
            buffer: Any = self._protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            self._protocol.buffer_updated(size)
            data = data[size:]

    def pause_reading(self) -> None:
        self._paused_reading = True

    def resume_reading(self) -> None:
        self._paused_reading = False
        self._read_soon()

    def is_reading(self) -> bool:
        return not self._paused_reading and not self._closing

    # writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._gone or self._end_wanted or not data:
            return
        if self.error is not None:
            self._call(self._leave, self.error)
            return
        self._unsent += data
        self._flush()
        if len(self._unsent) > self._high and not self._paused_writing:
            self._paused_writing = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        self._end_wanted = True
        self._flush()

    def can_write_eof(self) -> bool:
        return True

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    def _flush(self) -> None:
        """Send what the window has room for, then the end if it is wanted."""
        room = WINDOW_BYTES - self._sent
        if self._unsent and room > 0:
            data = bytes(self._unsent[:room])
            del self._unsent[:room]
            self._sent += len(data)
            self._pipe.send(data)
        if self._paused_writing and len(self._unsent) <= self._low and not self._gone:
            self._paused_writing = False
            assert self._context is not None, "a protocol wrote before"
            self._context.run(self._protocol.resume_writing)
        if not self._unsent and not self._gone:
            if self._end_wanted and not self._end_sent:
                self._end_sent = True
                self._pipe.put(Packet("end"))
            if self._closing:
                self._leave(None)

    # closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Send what waits, then end the connection."""
        if not self._closing:
            self._closing = self._end_wanted = True
            if self.error is not None:
                self._call(self._leave, self.error)
            elif not self._unsent:
                self._call(self._flush)

    def abort(self) -> None:
        """End the connection now. What was sent still arrives, unless something is unread here."""
        if not self._closing or self._unsent:
            self._closing = True
            self._unsent.clear()
            self._call(self._leave, None)

    def _leave(self, error: Exception | None) -> None:
        """Release the connection: the protocol gets nothing more."""
        if self._gone:
            return
        self._gone = self._closing = True
        if self.error is None and not isinstance(error, ConnectionResetError):
            unread = bool(self._arrived) or self.resets
            if unread or not self._end_sent:
                self._pipe.put(Packet("reset" if unread else "end"))
        self._unsent.clear()
        self._network.forget(self)
        self._socket.close()
        if self._protocol is not None:
            self._call(self._protocol.connection_lost, error)

    def _call(self, callback: Any, *args: Any) -> None:
        self._loop.call_soon(callback, *args, context=self._context)

    # facts

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {"socket": self._socket, "peername": self.remote, "sockname": self.local}
        return known.get(name, default)

    def get_protocol(self) -> Any:
        return self._protocol

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol
