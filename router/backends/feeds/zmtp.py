"""A ZeroMQ client: a SUB or DEALER over TCP or a Unix socket, without libzmq, so that its memory is bounded in
bytes.

libzmq bounds its receive queue in messages, whose size it checks frame by frame. So an engine that never ends a
message fills the memory, and so does one with a queue of large messages. Here a connection holds one message, and
what was read together with it (`HIGH_WATER_BYTES`). Beyond that nothing is read from the socket, so the rest waits
in the engine, which drops what exceeds its own limits: a gap, and gaps are replayed. All connections to one engine
share an `Intake`. A connection is one file descriptor (libzmq: two, and two more to watch it) and no thread.

    greeting   64 bytes both ways: version 3.0, mechanism NULL
    READY      a command both ways; then a SUB sends its subscription, a DEALER its request
    messages   frames: flags (1 more, 2 long, 4 command), length (1 byte, or 8), content
    PING       a command every `HEARTBEAT_S`, because a host that vanishes closes no connection

RFC 23/ZMTP 3.0, with the heartbeats of RFC 37/ZMTP 3.1. This module does not interpret the content of messages.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from router.fleet.engine_limits import OverLimit
from router.tasks import Tasks

MESSAGE_BYTES = 10 * 1024 * 1024  # all frames; a step that loads a million-token prompt has 9.6 MB, 45 ms to scan
MESSAGE_FRAMES = 8
HIGH_WATER_BYTES = 1024 * 1024
INTAKE_BYTES = 512 * 1024 * 1024  # read from an engine, not decoded yet: a live and a replayed message of each rank
COMMAND_BYTES = 1024
UNSENT_BYTES = 4096  # a peer that does not read heartbeats is cut off
CONNECT_TIMEOUT_S = 10.0  # until the peer is READY
RECONNECT_S, MOST_RECONNECT_S = 0.1, 2.0
HEARTBEAT_S, SILENT_S = 5.0, 15.0

GREETING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\0" + b"NULL".ljust(20, b"\0") + bytes(32)
PING, PONG = b"\x04PING\0\0", b"\x04PONG"  # a PING's time to live, 0: not stated
CONTEXT_BYTES = 16  # of a PING, which its PONG repeats
MORE, LONG, COMMAND = 1, 2, 4

Kind = Literal["SUB", "DEALER"]
Frames = list[bytes]


class Intake:
    """Counts the bytes that were read from one engine and not taken yet, over all its connections."""

    def __init__(self) -> None:
        self.held_bytes = 0


class ZmtpCallbacks(NamedTuple):
    """The functions by which a `ZmtpSocket` notifies its owner."""

    on_open: Callable[[], None]  # the peer is ready, for the first time or again
    on_readable: Callable[[], None]  # `ZmtpSocket.next_message` may return something
    on_excess: Callable[[OverLimit], None]  # the peer exceeded a limit: the connection is closed


class ZmtpSocket:
    """A socket that connects to `endpoint` (tcp://host:port or ipc://path), and reconnects whenever the connection
    is lost. `first` is sent whenever the peer becomes ready: a subscription (`subscription`) or a request.
    """

    def __init__(
        self,
        kind: Kind,
        endpoint: str,
        first: Sequence[bytes],
        intake: Intake,
        callbacks: ZmtpCallbacks,
        tasks: Tasks,
    ) -> None:
        """Raises ValueError for an endpoint of another form."""
        self.kind: Kind = kind
        self._address = parse_endpoint(endpoint)
        self._first = first
        self._intake = intake
        self._callbacks = callbacks
        self._connection: _Connection | None = None
        self._task: asyncio.Task[None] | None = tasks.spawn("connect", self._run())

    @property
    def closed(self) -> bool:
        return self._task is None

    def next_message(self) -> Frames | None:
        """Return the next message; [] for a command; None if no complete message is left."""
        return None if self._connection is None else self._connection.next_message()

    def close(self) -> None:
        """Close the connection, and open no other."""
        if self._task is not None:
            self._task.cancel()
            self._task = None  # it ends with a traceback that refers to this socket: a cycle otherwise
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        pause_s = RECONNECT_S
        while True:
            connection = _Connection(loop, self.kind, self._first, self._intake, self._callbacks)
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    if isinstance(self._address, str):
                        await loop.create_unix_connection(lambda: connection, self._address)  # noqa: B023
                    else:
                        await loop.create_connection(lambda: connection, *self._address)  # noqa: B023
                    self._connection = connection
                    await connection.opened
                pause_s = RECONNECT_S
                await connection.lost
            except (OSError, UnicodeError):  # TimeoutError is one; UnicodeError: a name that cannot be one
                pass
            finally:
                connection.close()
                self._connection = None
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MOST_RECONNECT_S)


class _Connection(asyncio.Protocol):
    """One connection, from its greeting to its end."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        kind: Kind,
        first: Sequence[bytes],
        intake: Intake,
        callbacks: ZmtpCallbacks,
    ) -> None:
        self._loop = loop
        self._kind: Kind = kind
        self._first = first
        self._intake = intake
        self._callbacks = callbacks
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._greeted = False
        self._paused = False
        self._closed = False
        self._received_s = loop.time()
        self._heartbeat: asyncio.TimerHandle | None = None
        self.opened: asyncio.Future[None] = loop.create_future()
        self.lost: asyncio.Future[None] = loop.create_future()

    def close(self) -> None:
        """Drop the connection and what was read from it."""
        self._closed = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        self._intake.held_bytes -= len(self._buffer)
        self._buffer.clear()
        for future in (self.opened, self.lost):
            future.cancel()
        if self._transport is not None:
            self._transport.abort()
            self._transport = None

    # called by the loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self._closed:
            transport.abort()
            return
        self._transport = transport
        transport.write(GREETING + _ready(self._kind))

    def connection_lost(self, exc: Exception | None) -> None:
        for future in (self.opened, self.lost):
            if not future.done():
                future.set_exception(exc or ConnectionResetError("the engine closed the connection"))
                future.exception()  # retrieved: nobody may be waiting

    def data_received(self, data: bytes) -> None:
        if self._closed:
            return
        self._received_s = self._loop.time()
        self._buffer += data
        self._intake.held_bytes += len(data)
        if self._intake.held_bytes > INTAKE_BYTES:
            self._refuse(OverLimit("unread_events", f"more than {INTAKE_BYTES:,} bytes of KV events wait to be read"))
        elif not self.opened.done():
            self._shake_hands()
        else:
            if len(self._buffer) > HIGH_WATER_BYTES:
                self._pause()
            self._callbacks.on_readable()

    # the handshake

    def _shake_hands(self) -> None:
        """Read the greeting and READY as far as they have arrived. Anything else ends the connection."""
        if not self._greeted:
            if self._buffer[:1] != GREETING[:1]:
                self._abort()
                return
            if len(self._buffer) < len(GREETING):
                return
            greeting = self._take(len(GREETING))
            if greeting[9] != 0x7F or greeting[10] < 3 or greeting[12:32] != GREETING[12:32]:
                self._abort()
                return
            self._greeted = True
        frame = self._frame(0)
        if frame is None:
            if len(self._buffer) > COMMAND_BYTES:
                self._abort()
            return
        flags, start, end = frame
        command = self._take(end)[start:]
        if not flags & COMMAND or not command.startswith(b"\x05READY") or self._transport is None:
            self._abort()
            return
        self.opened.set_result(None)
        self._transport.write(encode_message(self._first))
        self._beat()
        self._callbacks.on_open()
        if self._buffer:
            self._callbacks.on_readable()

    # messages

    def next_message(self) -> Frames | None:
        if not self.opened.done() or self._closed:
            return None
        ends: list[tuple[int, int]] = []
        at = 0
        while (frame := self._frame(at)) is not None:
            flags, start, at = frame
            if flags & COMMAND:
                self._on_command(self._take(at)[start:])
                return []
            ends.append((start, at))
            if not flags & MORE:
                content = self._take(at)
                self._resume()
                return [content[start:end] for start, end in ends]
            if len(ends) >= MESSAGE_FRAMES:
                self._refuse(OverLimit("message", f"a KV event message of more than {MESSAGE_FRAMES} frames"))
                return None
        if not self._closed:
            self._resume(whatever_waits=True)  # completing the message takes more data
        return None

    def _frame(self, at: int) -> tuple[int, int, int] | None:
        """Return flags, start and end of the frame at `at` of the buffer; None if the frame is not complete."""
        buffer = self._buffer
        if len(buffer) < at + 2:
            return None
        flags, start = buffer[at], at + 2
        if flags & LONG:
            start = at + 9
            if len(buffer) < start:
                return None
            size = int.from_bytes(buffer[at + 1 : start], "big")
        else:
            size = buffer[at + 1]
        end = start + size
        if flags > MORE | LONG | COMMAND or (flags & COMMAND and size > COMMAND_BYTES):
            self._abort()
            return None
        if end > MESSAGE_BYTES:
            self._refuse(OverLimit("message", f"a KV event message of more than {MESSAGE_BYTES:,} bytes"))
            return None
        return (flags, start, end) if end <= len(buffer) else None

    def _take(self, size: int) -> bytes:
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._intake.held_bytes -= size
        return taken

    def _on_command(self, command: bytes) -> None:
        """Answer a PING with its context; ignore other commands."""
        if command.startswith(b"\x04PING") and self._transport is not None:
            self._send_command(PONG + command[len(PING) : len(PING) + CONTEXT_BYTES])

    def _send_command(self, command: bytes) -> None:
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > UNSENT_BYTES:
            self._abort()
        else:
            self._transport.write(bytes((COMMAND, len(command))) + command)

    # the connection's life

    def _beat(self) -> None:
        """Send a heartbeat, and close a connection that has stayed silent in spite of heartbeats."""
        if self._closed or self._transport is None:
            return
        if self._loop.time() - self._received_s > SILENT_S and not self._paused:
            self._abort()
            return
        self._send_command(PING)
        self._heartbeat = self._loop.call_later(HEARTBEAT_S, self._beat)

    def _pause(self) -> None:
        if not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()

    def _resume(self, *, whatever_waits: bool = False) -> None:
        if self._paused and self._transport is not None and (whatever_waits or len(self._buffer) <= HIGH_WATER_BYTES):
            self._paused = False
            self._received_s = self._loop.time()
            self._transport.resume_reading()

    def _abort(self) -> None:
        """End the connection; the socket will open another."""
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, over: OverLimit) -> None:
        self._abort()
        self._callbacks.on_excess(over)


def parse_endpoint(endpoint: str) -> str | tuple[str, int]:
    """Return the path of an ipc endpoint, or host and port of a tcp one. Raises ValueError for any other."""
    if endpoint.startswith("ipc://") and len(endpoint) > len("ipc://"):
        path = endpoint.removeprefix("ipc://")
        return "\0" + path[1:] if path.startswith("@") else path
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not endpoint.startswith("tcp://") or not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError("not tcp://HOST:PORT or ipc://PATH")
    return host.removeprefix("[").removesuffix("]"), int(port)


def subscription(topic: str) -> Frames:
    """Return the message with which a SUB subscribes to topics that begin with `topic`."""
    return [b"\x01" + topic.encode()]


def _ready(kind: Kind) -> bytes:
    properties = ((b"Socket-Type", kind.encode()), (b"Identity", b""))
    body = b"\x05READY" + b"".join(
        bytes((len(name),)) + name + len(value).to_bytes(4, "big") + value for name, value in properties
    )
    return bytes((COMMAND, len(body))) + body


def encode_message(frames: Sequence[bytes]) -> bytes:
    """Return the bytes of a message of these frames; of none, no bytes."""
    flags = [MORE] * (len(frames) - 1) + [0]
    return b"".join(map(_encode_frame, frames, flags))


def _encode_frame(content: bytes, flags: int) -> bytes:
    size = len(content)
    if size > 255:
        return bytes((LONG | flags,)) + size.to_bytes(8, "big") + content
    return bytes((flags, size)) + content
