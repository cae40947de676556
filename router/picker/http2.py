"""gRPC calls over HTTP/2, the server's side: what gateways speak, no more, and bounded in what a peer can make it hold.

Written for its cost: gRPC's own server for asyncio took four times the CPU time of a picker's exchange. Messages go
straight from a frame to the call's handler, and what is sent in one turn of the event loop goes out in one write.
Whatever a peer does against RFC 9113 ends its connection with GOAWAY. Header compression is hpack's.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Mapping
from typing import cast

from hpack import Decoder, HPACKError

from router.picker.grpc_stream import STREAM_WINDOW, UNIMPLEMENTED, GrpcHandler, GrpcStream
from router.picker.header_blocks import keeps_table

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32
NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED, FRAME_SIZE_ERROR = 0, 1, 3, 5, 6
REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 7, 9, 11
FRAME_BYTES = 256 * 1024  # largest frame that is taken
CONNECTION_WINDOW, MAX_WINDOW = 64 << 20, (1 << 31) - 1
HEADER_BYTES = 64 * 1024  # of one header block
STREAMS, MAX_STREAM_ID = 10_000, (1 << 31) - 1  # open at once on a connection
KNOWN_BLOCKS = 64  # header blocks of which the path is remembered
UNCOUNTED_BYTES = 64 * 1024  # of a connection's messages that are not whole: so much is taken whatever others hold
PREFACE_S = 10.0  # for a connection to say that it speaks HTTP/2
STALL_S = 60.0  # for a peer to read what it was sent
_U32 = struct.Struct(">I")
_SETTING = struct.Struct(">HI")


class Http2Error(Exception):
    """The peer has broken the protocol; `code` goes into GOAWAY."""

    def __init__(self, code: int) -> None:
        super().__init__(f"HTTP/2 error {code}")
        self.code = code


class GrpcConnection(asyncio.Protocol):
    """One connection of a peer. `services` makes a call's handler, by the path of the call. `budget_bytes` is for the
    messages that are not whole, of all `connections` together.
    """

    def __init__(
        self,
        services: Mapping[bytes, Callable[[GrpcStream], GrpcHandler]],
        message_bytes: int,
        connections: set[GrpcConnection],
        most_connections: int,
        budget_bytes: int,
    ) -> None:
        self._services = services
        self.message_bytes = message_bytes
        self._connections = connections
        self._most_connections = most_connections
        self._budget_bytes = budget_bytes
        self._loop = asyncio.get_running_loop()
        self._decoder = Decoder()
        self._decoder.max_header_list_size = HEADER_BYTES
        self._paths: dict[bytes, bytes] = {}
        self._buffer = b""
        self._prefaced = False
        self._block: tuple[int, bool, bytearray] | None = None  # headers that go on in the next frame
        self._last_id = 0
        self._receives = CONNECTION_WINDOW
        self._out: list[bytes] = []
        self._scheduled = False
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None
        self.streams: dict[int, GrpcStream] = {}
        self.blocked: dict[int, GrpcStream] = {}
        self.partial_bytes = 0
        self.peer = ""
        self.peer_window = self.window = 65_535
        self.peer_frame = 16_384

    # the connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        name = transport.get_extra_info("peername")
        self.peer = str(name[0]) if isinstance(name, tuple) else ""
        if len(self._connections) >= self._most_connections:
            self._transport.abort()
            return
        self._connections.add(self)
        settings = {3: STREAMS, 4: STREAM_WINDOW, 5: FRAME_BYTES, 6: HEADER_BYTES}
        self.queue_frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(*pair) for pair in settings.items()))
        self.queue_frame(WINDOW_UPDATE, 0, 0, _U32.pack(CONNECTION_WINDOW - 65_535))
        self._timer = self._loop.call_later(PREFACE_S, self.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._stop_timer()
        for stream in list(self.streams.values()):
            stream.close()
            if stream.handler is not None:
                stream.handler.on_gone()

    def abort(self) -> None:
        """Cut the connection off at once."""
        self._transport.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def pause_writing(self) -> None:
        """A peer that does not read gets nothing more to do, and is cut off after a while."""
        self._transport.pause_reading()
        self._stop_timer()
        self._timer = self._loop.call_later(STALL_S, self.abort)

    def resume_writing(self) -> None:
        self._stop_timer()
        self._transport.resume_reading()

    def retire(self) -> None:
        """Let the peer make another connection for its next calls. Those that it begins before it has read this are
        served (RFC 9113, 6.8: GOAWAY with the highest id, so that none of them is lost).
        """
        self.queue_frame(GOAWAY, 0, 0, _U32.pack(MAX_STREAM_ID) + _U32.pack(NO_ERROR))

    def drain(self) -> None:
        """Take no new calls; the connection closes when the open ones have ended."""
        self._draining = True
        self.queue_frame(GOAWAY, 0, 0, _U32.pack(self._last_id) + _U32.pack(NO_ERROR))

    def close(self) -> None:
        """Close the connection when what is queued has been sent."""
        self._flush()
        self._transport.close()

    # what is sent

    def queue_frame(self, kind: int, flags: int, id: int, payload: bytes) -> None:
        size = len(payload)
        self._out.append(bytes((size >> 16, size >> 8 & 255, size & 255, kind, flags)) + _U32.pack(id))
        if payload:
            self._out.append(payload)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._out and not self._transport.is_closing():
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def forget(self, id: int) -> None:
        self.streams.pop(id, None)
        self.blocked.pop(id, None)

    # what is received

    def data_received(self, data: bytes) -> None:
        if self._buffer:
            data = self._buffer + data
        try:
            taken = self._take(data)
        except Http2Error as error:
            self.queue_frame(GOAWAY, 0, 0, _U32.pack(self._last_id) + _U32.pack(error.code))
            self.close()
            return
        self._buffer = data[taken:]

    def _take(self, data: bytes) -> int:
        """Take the whole frames in `data`; return how many bytes they are. Raises `Http2Error`."""
        at = 0
        if not self._prefaced:
            if not PREFACE.startswith(data[:24]):
                raise Http2Error(PROTOCOL_ERROR)
            if len(data) < 24:
                return 0
            self._prefaced, at = True, 24
            self._stop_timer()
        view, end = memoryview(data), len(data)
        while end - at >= 9 and not self._transport.is_closing():
            size = data[at] << 16 | data[at + 1] << 8 | data[at + 2]
            if size > FRAME_BYTES:
                raise Http2Error(FRAME_SIZE_ERROR)
            if end - at - 9 < size:
                break
            kind, flags, id = data[at + 3], data[at + 4], _U32.unpack_from(data, at + 5)[0] & MAX_WINDOW
            payload = view[at + 9 : at + 9 + size]
            at += 9 + size
            if self._block is not None and kind != CONTINUATION:
                raise Http2Error(PROTOCOL_ERROR)
            if kind == DATA:
                self._on_data(id, flags, payload)
            elif (handle := _FRAMES.get(kind)) is not None:
                handle(self, id, flags, payload)
        return at

    def _on_data(self, id: int, flags: int, payload: memoryview) -> None:
        size = len(payload)
        self._receives -= size
        if self._receives < 0:
            raise Http2Error(FLOW_CONTROL_ERROR)
        if self._receives < CONNECTION_WINDOW // 2:
            self.queue_frame(WINDOW_UPDATE, 0, 0, _U32.pack(CONNECTION_WINDOW - self._receives))
            self._receives = CONNECTION_WINDOW
        stream = self.streams.get(id)
        if stream is None:
            if id == 0 or id > self._last_id:
                raise Http2Error(PROTOCOL_ERROR)
            return  # of a call that has ended
        stream.receives -= size
        if stream.receives < 0:
            raise Http2Error(FLOW_CONTROL_ERROR)
        if stream.receives < STREAM_WINDOW // 2 and not flags & END_STREAM:
            self.queue_frame(WINDOW_UPDATE, 0, id, _U32.pack(STREAM_WINDOW - stream.receives))
            stream.receives = STREAM_WINDOW
        stream.take(_unpad(payload, flags), bool(flags & END_STREAM))
        if self.partial_bytes > UNCOUNTED_BYTES and self._holds_too_much():
            raise Http2Error(ENHANCE_YOUR_CALM)

    def _holds_too_much(self) -> bool:
        """Return whether too much memory is taken by messages that are not whole, here or on all connections."""
        everywhere = sum(connection.partial_bytes for connection in self._connections)
        return self.partial_bytes > 2 * self.message_bytes or everywhere > self._budget_bytes

    def _on_headers(self, id: int, flags: int, payload: memoryview) -> None:
        block = _unpad(payload, flags)
        if flags & HAS_PRIORITY:
            if len(block) < 5:
                raise Http2Error(FRAME_SIZE_ERROR)
            block = block[5:]
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
            raise Http2Error(ENHANCE_YOUR_CALM)
        if flags & END_HEADERS:
            self._block = None
            self._on_block(id, last, bytes(block))

    def _on_block(self, id: int, last: bool, block: bytes) -> None:
        """A whole header block opens a call, or ends the peer's side of one."""
        path = self._read_path(block)
        if (known := self.streams.get(id)) is not None:
            if not last:
                raise Http2Error(PROTOCOL_ERROR)
            known.take(memoryview(b""), True)
            return
        if id % 2 == 0 or id <= self._last_id:
            raise Http2Error(STREAM_CLOSED)
        self._last_id = id
        if self._draining or len(self.streams) >= STREAMS:
            self.queue_frame(RST_STREAM, 0, id, _U32.pack(REFUSED_STREAM))
            return
        stream = GrpcStream(self, id)
        make = self._services.get(path)
        if make is None:
            stream.finish(UNIMPLEMENTED, "no such method")
            return
        self.streams[id] = stream
        stream.handler = make(stream)
        if last:
            stream.handler.on_half_close()

    def _read_path(self, block: bytes) -> bytes:
        """Return the path of a call. A block that keeps the table means the same until another one changes it."""
        if (path := self._paths.get(block)) is not None:
            return path
        try:
            fields = dict(self._decoder.decode(block, raw=True))
        except (HPACKError, IndexError, ValueError) as error:
            raise Http2Error(COMPRESSION_ERROR) from error
        path = fields.get(b":path", b"")
        keeps = keeps_table(block)
        if not keeps or len(self._paths) >= KNOWN_BLOCKS:
            self._paths.clear()
        if keeps:
            self._paths[block] = path
        return path

    def _on_reset(self, id: int, flags: int, payload: memoryview) -> None:
        if len(payload) != 4 or id == 0 or id > self._last_id:
            raise Http2Error(PROTOCOL_ERROR)
        if (stream := self.streams.get(id)) is not None:
            stream.close()
            if stream.handler is not None:
                stream.handler.on_gone()

    def _on_settings(self, id: int, flags: int, payload: memoryview) -> None:
        if flags & ACK:
            return
        if len(payload) % 6 or id:
            raise Http2Error(FRAME_SIZE_ERROR)
        for name, value in _SETTING.iter_unpack(payload):
            if name == 4:
                if value > MAX_WINDOW:
                    raise Http2Error(FLOW_CONTROL_ERROR)
                for stream in self.streams.values():
                    stream.window += value - self.peer_window
                self.peer_window = value
            elif name == 5:
                if not 16_384 <= value < 1 << 24:
                    raise Http2Error(PROTOCOL_ERROR)
                self.peer_frame = value
        self.queue_frame(SETTINGS, ACK, 0, b"")
        self._pump_all()

    def _on_window(self, id: int, flags: int, payload: memoryview) -> None:
        if len(payload) != 4:
            raise Http2Error(FRAME_SIZE_ERROR)
        more = _U32.unpack(payload)[0] & MAX_WINDOW
        if not more:
            raise Http2Error(PROTOCOL_ERROR)
        if id == 0:
            self.window += more
            if self.window > MAX_WINDOW:
                raise Http2Error(FLOW_CONTROL_ERROR)
            self._pump_all()
        elif (stream := self.streams.get(id)) is not None:
            stream.window += more
            if stream.window > MAX_WINDOW:
                raise Http2Error(FLOW_CONTROL_ERROR)
            if id in self.blocked:
                stream.pump()

    def _pump_all(self) -> None:
        for stream in list(self.blocked.values()):
            stream.pump()

    def _on_ping(self, id: int, flags: int, payload: memoryview) -> None:
        if len(payload) != 8 or id:
            raise Http2Error(FRAME_SIZE_ERROR)
        if not flags & ACK:
            self.queue_frame(PING, ACK, 0, bytes(payload))

    def _on_push(self, id: int, flags: int, payload: memoryview) -> None:
        raise Http2Error(PROTOCOL_ERROR)


_FRAMES: dict[int, Callable[[GrpcConnection, int, int, memoryview], None]] = {
    HEADERS: GrpcConnection._on_headers,
    RST_STREAM: GrpcConnection._on_reset,
    SETTINGS: GrpcConnection._on_settings,
    PUSH_PROMISE: GrpcConnection._on_push,
    PING: GrpcConnection._on_ping,
    WINDOW_UPDATE: GrpcConnection._on_window,
    CONTINUATION: GrpcConnection._on_continuation,
}
"""What else there is (PRIORITY, GOAWAY, unknown frames) is ignored: a peer that goes away ends its calls by itself."""


def _unpad(payload: memoryview, flags: int) -> memoryview:
    if not flags & PADDED:
        return payload
    if not payload or payload[0] >= len(payload):
        raise Http2Error(PROTOCOL_ERROR)
    return payload[1 : len(payload) - payload[0]]
