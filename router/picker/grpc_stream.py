"""One gRPC call on an HTTP/2 connection: its messages in both directions, within the windows of both sides."""

from __future__ import annotations

import struct
from collections import deque
from typing import Protocol

from router.picker.allowance import FRAME, MESSAGE_BYTES, Allowance

DATA, HEADERS = 0, 1  # kinds of frames
END_STREAM, END_HEADERS = 1, 4
STREAM_WINDOW = 1 << 20  # bytes that a peer may send before a window update acknowledges them
OK, CANCELLED, INVALID_ARGUMENT, DEADLINE, NOT_FOUND, EXHAUSTED = 0, 1, 3, 4, 5, 8
UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 12, 13, 14
"""Status codes of gRPC."""
_HEAD = b"\x88\x0f\x10\x10application/grpc"  # :status 200 and content-type, neither indexed by the peer
_PREFIX = struct.Struct(">BI")  # of a message: whether it is compressed, and its length


class GrpcHandler(Protocol):
    """The side of a call that answers it."""

    def on_message(self, data: bytes) -> None:
        """Handle a message."""

    def on_half_close(self) -> None:
        """Handle that the peer sends no more."""

    def on_gone(self) -> None:
        """Handle the end of the call: the peer reset it, or the connection is lost."""


class FrameSink(Protocol):
    """The connection of a call."""

    peer: str
    peer_window: int
    peer_frame: int  # largest frame that the peer takes
    window: int  # bytes that may be sent on the whole connection
    message_bytes: int  # largest message that is taken
    blocked: dict[int, GrpcStream]  # calls that wait for the connection's window alone
    allowance: Allowance

    def queue_frame(self, kind: int, flags: int, id: int, payload: bytes) -> None: ...

    def forget(self, id: int) -> None:
        """Remove a call that is over."""

    def hold(self, bytes_: int) -> None:
        """Count `bytes_` more of incomplete messages as held."""

    def hold_unsent(self, bytes_: int) -> None:
        """Count `bytes_` more as waiting for a window of the peer."""

    def stops(self) -> bool:
        """Return whether the rest has to wait for a later turn, or for allowance."""


class GrpcStream:
    """One call. `send` and `finish` may be called at any time; after the end they do nothing."""

    __slots__ = (
        "_buffer",
        "_connection",
        "_ending",
        "_last",
        "_queue",
        "_started",
        "_status",
        "begun_s",
        "half_closed",
        "handler",
        "id",
        "messages",
        "over",
        "receives",
        "window",
    )

    def __init__(self, connection: FrameSink, id: int, begun_s: float) -> None:
        self.id = id
        self.begun_s = begun_s  # seconds of the connection's clock
        self.messages = 0  # that have arrived
        self.over = False
        self.half_closed = False  # the peer sends no more
        self.window = connection.peer_window  # bytes that may be sent
        self.receives = STREAM_WINDOW  # bytes that the peer may send
        self.handler: GrpcHandler | None = None
        self._connection = connection
        self._buffer = bytearray()  # of a message that is not whole
        self._queue: deque[memoryview] = deque()
        self._ending: bytes | None = None
        self._status = OK
        self._started = False
        self._last = False  # nothing more follows after the buffer

    @property
    def peer(self) -> str:
        """The address of the peer."""
        return self._connection.peer

    @property
    def waits(self) -> bool:
        """True while messages wait for a window."""
        return bool(self._queue)

    def send(self, message: bytes) -> None:
        if self.over or self._ending is not None:
            return
        connection, size = self._connection, len(message) + 5
        if not self._started:
            self._started = True
            connection.queue_frame(HEADERS, END_HEADERS, self.id, _HEAD)
        prefix = _PREFIX.pack(0, size - 5)
        if not self._queue and size <= connection.peer_frame and size <= self.window and size <= connection.window:
            self.window -= size
            connection.window -= size
            connection.queue_frame(DATA, 0, self.id, prefix + message)
            return
        self._queue.append(memoryview(prefix + message))
        connection.hold_unsent(size)
        self.pump()

    def pump(self) -> None:
        """Send as much of the waiting messages as the windows allow."""
        connection, queue = self._connection, self._queue
        while queue:
            size = min(len(queue[0]), connection.peer_frame, self.window, connection.window)
            if size <= 0:
                if self.window > 0:
                    connection.blocked[self.id] = self
                else:
                    connection.blocked.pop(self.id, None)
                return
            self.window -= size
            connection.window -= size
            connection.hold_unsent(-size)
            connection.queue_frame(DATA, 0, self.id, bytes(queue[0][:size]))
            if size == len(queue[0]):
                queue.popleft()
            else:
                queue[0] = queue[0][size:]
        connection.blocked.pop(self.id, None)
        if self._ending is not None:
            self._end(self._ending)

    def finish(self, status: int = OK, message: str = "") -> None:
        """End the call with a status, after the waiting messages have been sent."""
        if self.over or self._ending is not None:
            return
        trailers = _OK_TRAILERS if status == OK else _literal(b"grpc-status", b"%d" % status)
        if message:
            trailers += _literal(b"grpc-message", message.encode("ascii", "replace")[:100])
        self._status = status
        if self._queue:
            self._ending = trailers
        else:
            self._end(trailers)

    def _end(self, trailers: bytes) -> None:
        block = trailers if self._started else _HEAD + trailers
        self._connection.queue_frame(HEADERS, END_HEADERS | END_STREAM, self.id, block)
        if self.messages and self._status == OK:
            self._connection.allowance.earn_end()
        self.close()

    def expire(self) -> None:
        """End the call because its first message has not arrived in time."""
        self.finish(DEADLINE, "no message came in time")
        if self.handler is not None:
            self.handler.on_gone()

    def close(self) -> None:
        """Drop the call; nothing more is sent."""
        self.over = True
        if self._buffer:
            self._connection.hold(-len(self._buffer))
            self._buffer = bytearray()
        if self._queue:
            self._connection.hold_unsent(-sum(len(message) for message in self._queue))
            self._queue = deque()
        self._connection.forget(self.id)

    def take(self, data: memoryview, last: bool) -> bool:
        """Take a piece of the peer's messages. Return whether whole messages are left for `go_on`."""
        limit, buffer = self._connection.message_bytes, self._buffer
        self.half_closed = last
        size = len(data) - 5
        if not buffer and 0 <= size <= limit and _PREFIX.unpack_from(data) == (0, size):
            self._on_message(bytes(data[5:]))  # in most cases a frame is exactly one message
        elif data:
            self._connection.hold(len(data))
            buffer += data
            self._last = last
            return self.go_on()
        if last:
            self._half_close()
        return False

    def go_on(self) -> bool:
        """Take the whole messages of the buffer, at least one. Return whether some are left for another turn."""
        buffer, connection = self._buffer, self._connection
        at, size = 0, 0
        while len(buffer) - at >= 5 and not self.over:
            compressed, size = _PREFIX.unpack_from(buffer, at)
            if compressed or size > connection.message_bytes:
                self.finish(UNIMPLEMENTED if compressed else EXHAUSTED, "a message is compressed, or too large")
                assert self.handler is not None
                self.handler.on_gone()
                return False
            if len(buffer) - at - 5 < size:
                break
            if at:
                if connection.stops():
                    del buffer[:at]
                    connection.hold(-at)
                    return True
                if size < MESSAGE_BYTES:
                    connection.allowance.left -= FRAME  # the frame's own price covers its first message
            self._on_message(bytes(buffer[at + 5 : at + 5 + size]))
            at += 5 + size
        if not self.over:
            del buffer[:at]
            connection.hold(-at)
            if self._last:
                self._half_close()
        return False

    def _on_message(self, data: bytes) -> None:
        assert self.handler is not None
        self.messages += 1
        self.handler.on_message(data)
        if len(data) >= MESSAGE_BYTES and not self.over:
            allowance = self._connection.allowance
            if allowance.left < allowance.most:
                allowance.left += allowance.message

    def _half_close(self) -> None:
        assert self.handler is not None
        if not self.over:
            self.handler.on_half_close()


def _literal(name: bytes, value: bytes) -> bytes:
    """Return a header field that the peer does not index; name and value are shorter than 127 bytes."""
    return b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value


_OK_TRAILERS = _literal(b"grpc-status", b"0")
