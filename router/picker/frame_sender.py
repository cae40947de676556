"""The sending side of an HTTP/2 connection: frames are gathered into one write per turn, messages wait for the
windows of the peer.

When a window grows, only the calls that can send then are visited, and only while some of the window is left.
"""

from __future__ import annotations

import asyncio

from router.picker.allowance import WALKED_STREAMS, Allowance
from router.picker.frames import (
    ACK,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    GOAWAY,
    HEAD,
    MAX_STREAM_ID,
    MAX_WINDOW,
    NO_ERROR,
    PING,
    SETTINGS,
    U32,
    Http2Error,
    read_increment,
    read_settings,
)
from router.picker.grpc_stream import GrpcStream
from router.picker.peers import PeerConnections

UNCOUNTED_BYTES = 64 * 1024  # each connection may hold this much unfinished or unsent, whatever others hold


class FrameSender:
    """Sends frames for the calls in `streams`; those in `blocked` wait for the connection's window alone."""

    __slots__ = (
        "_out",
        "_over",
        "_peers",
        "_scheduled",
        "_transport",
        "allowance",
        "blocked",
        "partial_bytes",
        "peer_frame",
        "peer_window",
        "streams",
        "unsent_bytes",
        "window",
    )

    _transport: asyncio.Transport
    allowance: Allowance

    def __init__(self, peers: PeerConnections) -> None:
        self._peers = peers
        self._out: list[bytes] = []
        self._scheduled = False
        self._over = False
        self.streams: dict[int, GrpcStream] = {}
        self.blocked: dict[int, GrpcStream] = {}
        self.peer_window = self.window = 65_535
        self.peer_frame = 16_384
        self.partial_bytes = 0
        self.unsent_bytes = 0

    def queue_frame(self, kind: int, flags: int, id: int, payload: bytes) -> None:
        size = len(payload)
        self._out += HEAD.pack(size >> 16, size & 65_535, kind, flags, id), payload
        if not self._scheduled:
            self._scheduled = True
            self._peers.flush_later(self)

    def flush(self) -> None:
        """Send what is queued."""
        self._scheduled = False
        if self._out and not self._over:
            self._transport.write(b"".join(self._out))
        self._out.clear()

    def retire(self) -> None:
        """Make the peer open another connection for its next calls. Calls that it begins before it has read this
        are served (RFC 9113, 6.8: GOAWAY with the highest id, so that none of them is lost).
        """
        self.queue_frame(GOAWAY, 0, 0, U32.pack(MAX_STREAM_ID) + U32.pack(NO_ERROR))

    def hold(self, bytes_: int) -> None:
        self.partial_bytes += bytes_
        self._peers.partial_bytes += bytes_

    def hold_unsent(self, bytes_: int) -> None:
        self.unsent_bytes += bytes_
        self._peers.unsent_bytes += bytes_

    def check_held(self) -> None:
        """Raise `Http2Error` if incomplete messages, or messages that wait for the peer's windows, take too much
        memory, counted on this connection and on all.
        """
        peers, budget_bytes = self._peers, self._peers.bounds.budget_bytes
        if self.partial_bytes > UNCOUNTED_BYTES and (
            self.partial_bytes > 2 * peers.bounds.message_bytes or peers.partial_bytes > budget_bytes
        ):
            raise Http2Error(ENHANCE_YOUR_CALM)
        if self.unsent_bytes > UNCOUNTED_BYTES and peers.unsent_bytes > budget_bytes:
            raise Http2Error(ENHANCE_YOUR_CALM)

    def _on_settings(self, id: int, flags: int, payload: memoryview) -> None:
        if flags & ACK:
            return
        settings = read_settings(id, payload)
        self.queue_frame(SETTINGS, ACK, 0, b"")
        if settings.frame is not None:
            self.peer_frame = settings.frame
        if settings.window is not None and settings.window != self.peer_window:
            more, self.peer_window = settings.window - self.peer_window, settings.window
            self.allowance.left -= len(self.streams) // WALKED_STREAMS
            for id, stream in self.streams.items():
                stream.window += more
                if stream.waits and stream.window > 0:
                    self.blocked[id] = stream
            if more > 0:
                self._pump()

    def _on_window(self, id: int, flags: int, payload: memoryview) -> None:
        more = read_increment(payload)
        if id == 0:
            self.window += more
            if self.window > MAX_WINDOW:
                raise Http2Error(FLOW_CONTROL_ERROR)
            self.allowance.left -= len(self.blocked) // WALKED_STREAMS
            self._pump()
        elif (stream := self.streams.get(id)) is not None:
            stream.window += more
            if stream.window > MAX_WINDOW:
                raise Http2Error(FLOW_CONTROL_ERROR)
            if stream.waits:
                stream.pump()

    def _pump(self) -> None:
        """Let calls send what waits for the connection's window, while some of the window is left."""
        for stream in list(self.blocked.values()):
            if self.window <= 0:
                break
            stream.pump()

    def _on_ping(self, id: int, flags: int, payload: memoryview) -> None:
        if len(payload) != 8 or id:
            raise Http2Error(FRAME_SIZE_ERROR)
        if not flags & ACK:
            self.queue_frame(PING, ACK, 0, bytes(payload))
