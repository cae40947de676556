"""gRPC calls over HTTP/2, the server's side: only what gateways use, with bounds on what a peer can make it do.

Written for low cost: gRPC's own server for asyncio took four times the CPU time of a picker's exchange. A message
goes straight from its frame to the call's handler, and everything sent in one turn of the event loop is one write.
A peer that violates RFC 9113 has its connection ended with GOAWAY. Frames that the RFC allows but that serve nobody
are taken slowly: frames have a price (`allowance.py`), and the connections of a listener share its time
(`peers.py`). Under the known floods it takes a fifth of a core at most, gRPC's own server 0.4 to 1.5 cores
(`tests/abuse/test_http2.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

from router.picker import frames as h2
from router.picker.allowance import BLOCK_BYTES, DATA_BYTES, FRAME
from router.picker.frame_sender import FrameSender
from router.picker.frames import (
    DATA,
    END_HEADERS,
    END_STREAM,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEAD,
    HEADERS,
    PADDED,
    PROTOCOL_ERROR,
    U32,
    Http2Error,
    unpad,
)
from router.picker.grpc_stream import STREAM_WINDOW, UNIMPLEMENTED, GrpcHandler, GrpcStream
from router.picker.header_blocks import HEADER_BYTES, PathReader
from router.picker.peers import PeerConnections
from router.proxy.client_address import client_of

FRAME_BYTES = 256 * 1024  # largest frame that is taken
CONNECTION_WINDOW = 64 << 20
PREFACE_S = 10.0  # for a connection to send HTTP/2's preface
FIRST_MESSAGE_S = 10.0  # for a call's first message, which a gateway and a probe send with the call
STALL_S = 60.0  # for a peer to read what it was sent


class GrpcConnection(FrameSender, asyncio.Protocol):
    """One connection of a peer, among its listener's `peers`. `services` creates a call's handler by its path."""

    __slots__ = (
        "_block",
        "_bounds",
        "_draining",
        "_halted",
        "_headers",
        "_last_id",
        "_left",
        "_left_bytes",
        "_needed_bytes",
        "_prefaced",
        "_reading",
        "_receives",
        "_services",
        "_silence",
        "_timer",
        "_unread",
        "_waits",
        "message_bytes",
        "peer",
    )

    def __init__(self, services: Mapping[bytes, Callable[[GrpcStream], GrpcHandler]], peers: PeerConnections) -> None:
        super().__init__(peers)
        self._services = services
        self._bounds = peers.bounds
        self._headers = PathReader()
        self._left: list[bytes] = []  # received and not taken yet
        self._left_bytes = self._needed_bytes = 0
        self._halted: GrpcStream | None = None  # a call with whole messages that are not taken yet
        self._waits = False  # for a later turn
        self._unread = False  # the peer does not read what was sent
        self._reading = True
        self._prefaced = False
        self._block: tuple[int, bool, bytearray] | None = None  # headers that continue in the next frame
        self._last_id = 0
        self._receives = CONNECTION_WINDOW
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self._silence: asyncio.TimerHandle | None = None
        self.message_bytes = peers.bounds.message_bytes
        self.peer = ""

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        allowance = None
        if len(self._peers.connections) < self._bounds.connections:
            allowance = self._peers.allowances.open(client_of(self.peer))
        if allowance is None:
            self.abort()
            return
        self.allowance = allowance
        self._peers.connections.add(self)
        settings = {3: self._bounds.streams, 4: STREAM_WINDOW, 5: FRAME_BYTES, 6: HEADER_BYTES}
        self.queue_frame(h2.SETTINGS, 0, 0, h2.write_settings(settings))
        self.queue_frame(h2.WINDOW_UPDATE, 0, 0, U32.pack(CONNECTION_WINDOW - 65_535))
        self._timer = asyncio.get_running_loop().call_later(PREFACE_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._stop_timer()
        self._stop_waiting()
        if self in self._peers.connections:
            self._peers.connections.discard(self)
            self._peers.allowances.close(self.allowance)
            self._left.clear()
            self._end_calls()

    def _end_calls(self) -> None:
        """End the calls of a lost connection, in slices, because each call's handler has to be notified."""
        while self.streams:
            if not self._peers.begin():
                self._peers.wait(self)
                return
            stream = self.streams[next(reversed(self.streams))]
            stream.close()
            if stream.handler is not None:
                stream.handler.on_gone()

    def _stop_waiting(self) -> None:
        if self._silence is not None:
            self._silence.cancel()
            self._silence = None

    def _end_silent(self) -> None:
        """End the calls whose first message has not arrived in time, the oldest first."""
        self._silence, now_s = None, self._peers.now()
        for stream in [stream for stream in self.streams.values() if not stream.messages]:
            if (left_s := stream.begun_s + FIRST_MESSAGE_S - now_s) > 0:
                self._silence = asyncio.get_running_loop().call_later(max(1.0, left_s), self._end_silent)
                return
            stream.expire()

    def abort(self) -> None:
        """Cut the connection off at once."""
        self._over = True
        self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_writing(self) -> None:
        """Stop reading from a peer that does not read, and cut the peer off after a while."""
        self._unread = True
        self._set_reading()
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(STALL_S, self.abort)

    def resume_writing(self) -> None:
        self._unread = False
        self._stop_timer()
        if self._left and not self._waits:
            self._wait(0)
        self._set_reading()

    def _set_reading(self) -> None:
        """Read from the peer unless something requires it to wait."""
        reading = not (self._waits or self._unread or self._over)
        if reading != self._reading and not self._over:
            self._reading = reading
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def drain(self) -> None:
        """Accept no new calls; the connection closes when the open calls have ended."""
        self._draining = True
        self.queue_frame(GOAWAY, 0, 0, U32.pack(self._last_id) + U32.pack(h2.NO_ERROR))

    def close(self) -> None:
        """Close the connection when what is queued has been sent."""
        self.flush()
        self._over = True
        self._transport.close()

    def forget(self, id: int) -> None:
        self.streams.pop(id, None)
        self.blocked.pop(id, None)

    def stops(self) -> bool:
        """Return whether the rest has to wait for a later turn, or for allowance."""
        if self.allowance.left <= 0:
            self.allowance.refill(self._peers.now())
        return self.allowance.left <= 0 or not self._peers.begin()

    # what is received

    def data_received(self, data: bytes) -> None:
        if self._left or self._waits:
            self._left.append(data)
            self._left_bytes += len(data)
            if self._waits:
                return
            if self._left_bytes < self._needed_bytes:
                if len(data) < DATA_BYTES:
                    self.allowance.left -= FRAME  # a peer may send a frame byte by byte
                if self.allowance.left > 0:
                    return
            data = b"".join(self._left)
        self._advance(data)

    def proceed(self) -> None:
        """Continue with what was left for a later turn."""
        self._waits = False
        if self._over:
            self._end_calls()
        elif not self._unread:  # otherwise `resume_writing` continues
            self._advance(b"".join(self._left))

    def _advance(self, data: bytes) -> None:
        try:
            taken = self._take(data)
        except Http2Error as error:
            self.queue_frame(GOAWAY, 0, 0, U32.pack(self._last_id) + U32.pack(error.code))
            self.close()
            return
        if taken < len(data):
            self._left, self._left_bytes = [data[taken:]], len(data) - taken
        elif self._left:
            self._left, self._left_bytes = [], 0
        if self._waits or not self._reading:
            self._set_reading()

    def _take(self, data: bytes) -> int:
        """Take the whole frames in `data`, as far as this turn allows; return their size, bytes. Raises
        `Http2Error`.
        """
        at = 0
        if not self._prefaced:
            if not h2.PREFACE.startswith(data[:24]):
                raise Http2Error(PROTOCOL_ERROR)
            if len(data) < 24:
                self._needed_bytes = 24
                return 0
            self._prefaced, at = True, 24
            self._stop_timer()
        if (self.allowance.left <= 0 or not self._peers.begin()) and self.stops():
            return self._wait(at)
        if self._halted is not None:
            if self._halted.go_on():
                return self._wait(at)
            self._halted = None
        begun, view, end, allowance = at, memoryview(data), len(data), self.allowance
        self._needed_bytes = 9
        while end - at >= 9 and not self._over:
            if at > begun and self.stops():
                return self._wait(at)
            high, low, kind, flags, id = HEAD.unpack_from(data, at)
            size = high << 16 | low
            if size > FRAME_BYTES:
                raise Http2Error(FRAME_SIZE_ERROR)
            if end - at - 9 < size:
                self._needed_bytes = 9 + size
                break
            payload = view[at + 9 : at + 9 + size]
            at += 9 + size
            id &= h2.MAX_STREAM_ID  # the bit before it is reserved
            if self._block is not None and kind != h2.CONTINUATION:
                raise Http2Error(PROTOCOL_ERROR)
            if kind == DATA:
                if self._on_data(id, flags, payload):
                    return self._wait(at)
                continue
            allowance.left -= FRAME
            if (handle := _FRAMES.get(kind)) is not None:
                handle(self, id, flags, payload)
        return at

    def _wait(self, taken: int) -> int:
        """Continue in a later turn after the first `taken` bytes; return `taken`."""
        self._waits = True
        self._peers.wait(self, self.allowance)
        return taken

    def _on_data(self, id: int, flags: int, payload: memoryview) -> bool:
        """Take a piece of a call's messages. Return whether whole messages are left for another turn."""
        size = len(payload)
        self._receives -= size
        if self._receives < 0:
            raise Http2Error(h2.FLOW_CONTROL_ERROR)
        if self._receives < CONNECTION_WINDOW // 2:
            self.queue_frame(h2.WINDOW_UPDATE, 0, 0, U32.pack(CONNECTION_WINDOW - self._receives))
            self._receives = CONNECTION_WINDOW
        data = unpad(payload, flags) if flags & PADDED else payload
        stream = self.streams.get(id)
        if stream is None:
            if id == 0 or id > self._last_id:
                raise Http2Error(PROTOCOL_ERROR)
            self.allowance.left -= FRAME
            return False  # the data is of a call that has ended
        if len(data) < DATA_BYTES:
            self.allowance.left -= FRAME
        stream.receives -= size
        if stream.receives < 0:
            raise Http2Error(h2.FLOW_CONTROL_ERROR)
        if stream.half_closed:
            raise Http2Error(h2.STREAM_CLOSED)
        if stream.receives < STREAM_WINDOW // 2 and not flags & END_STREAM:
            self.queue_frame(h2.WINDOW_UPDATE, 0, id, U32.pack(STREAM_WINDOW - stream.receives))
            stream.receives = STREAM_WINDOW
        if stream.take(data, bool(flags & END_STREAM)):
            self._halted = stream
        if self.partial_bytes or self.unsent_bytes:
            self.check_held()
        return self._halted is not None

    def _on_headers(self, id: int, flags: int, payload: memoryview) -> None:
        block = unpad(payload, flags)
        if flags & h2.HAS_PRIORITY:
            if len(block) < 5:
                raise Http2Error(FRAME_SIZE_ERROR)
            block = block[5:]
        if len(block) > HEADER_BYTES:
            raise Http2Error(h2.ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            self._on_block(id, bool(flags & END_STREAM), bytes(block))
        else:
            self._block = id, bool(flags & END_STREAM), bytearray(block)

    def _on_continuation(self, id: int, flags: int, payload: memoryview) -> None:
        if self._block is None or self._block[0] != id:
            raise Http2Error(PROTOCOL_ERROR)
        _, last, block = self._block
        block += payload
        if len(block) > HEADER_BYTES or not payload:
            raise Http2Error(h2.ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            self._block = None
            self._on_block(id, last, bytes(block))

    def _on_block(self, id: int, last: bool, block: bytes) -> None:
        """Open a call with a whole header block, or end the peer's side of an open call."""
        self.allowance.left -= len(block) // BLOCK_BYTES
        path = self._headers.read(block)
        if (known := self.streams.get(id)) is not None:
            if not last:
                raise Http2Error(PROTOCOL_ERROR)
            if known.half_closed:
                raise Http2Error(h2.STREAM_CLOSED)
            known.take(memoryview(b""), True)
            return
        if id % 2 == 0 or id <= self._last_id:
            raise Http2Error(h2.STREAM_CLOSED)
        self._last_id = id
        if self._draining or len(self.streams) >= self._bounds.streams:
            self.queue_frame(h2.RST_STREAM, 0, id, U32.pack(h2.REFUSED_STREAM))
            return
        stream = GrpcStream(self, id, self._peers.until_s)
        make = self._services.get(path)
        if make is None:
            stream.finish(UNIMPLEMENTED, "no such method")
            return
        self.streams[id] = stream
        if self._silence is None:
            self._silence = asyncio.get_running_loop().call_later(FIRST_MESSAGE_S, self._end_silent)
        stream.handler = make(stream)
        if last:
            stream.take(memoryview(b""), True)

    def _on_reset(self, id: int, flags: int, payload: memoryview) -> None:
        if len(payload) != 4 or id == 0 or id > self._last_id:
            raise Http2Error(PROTOCOL_ERROR)
        if (stream := self.streams.get(id)) is not None:
            if stream.messages > 1:
                self.allowance.left += FRAME  # a client that has sent its request hangs up, which is no attack
            stream.close()
            if stream.handler is not None:
                stream.handler.on_gone()

    def _on_push(self, id: int, flags: int, payload: memoryview) -> None:
        raise Http2Error(PROTOCOL_ERROR)


_FRAMES: dict[int, Callable[[GrpcConnection, int, int, memoryview], None]] = {
    HEADERS: GrpcConnection._on_headers,
    h2.RST_STREAM: GrpcConnection._on_reset,
    h2.SETTINGS: GrpcConnection._on_settings,
    h2.PUSH_PROMISE: GrpcConnection._on_push,
    h2.PING: GrpcConnection._on_ping,
    h2.WINDOW_UPDATE: GrpcConnection._on_window,
    h2.CONTINUATION: GrpcConnection._on_continuation,
}
"""All other frames (PRIORITY, GOAWAY, unknown ones) are ignored: a peer that goes away ends its calls by itself."""
