"""The HTTP/2 server against peers that do not keep to RFC 9113; the others are gRPC and Envoy, in other tests."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.picker import frames as http2
from router.picker.allowance import AllowanceRule
from router.picker.grpc_stream import GrpcStream
from router.picker.header_blocks import keeps_table
from router.picker.http2 import GrpcConnection
from router.picker.peers import PeerBounds, PeerConnections
from tests.fakes.engines import eventually
from tests.fakes.http2 import (
    CONTINUATION,
    DATA,
    GOAWAY,
    HEADERS,
    PING,
    PRIORITY,
    PUSH,
    RST,
    SETTINGS,
    WINDOW,
    WINDOW_SIZE,
    frame,
    message,
    settings,
)
from tests.fakes.http2 import headers as block

ECHO, WAITER = b"/test/Echo", b"/test/Waiter"
MESSAGE_BYTES = 100_000
BUDGET_BYTES = 250_000
STREAMS = 20
RULE = AllowanceRule(start=1000, per_s=100, most=10_000, message=2, end=1, connections=10)
EMPTY = struct.pack(">BI", 0, 0)


class Echo:
    """Sends back what comes."""

    calls: list[Echo] = []

    def __init__(self, stream: GrpcStream) -> None:
        self.stream = stream
        self.gone = 0
        Echo.calls.append(self)

    def on_message(self, data: bytes) -> None:
        self.stream.send(data)

    def on_half_close(self) -> None:
        self.stream.finish()

    def on_gone(self) -> None:
        self.gone += 1


def headers(id: int, path: bytes = ECHO, flags: int = 4) -> bytes:
    return block(id, path, flags)


class Waiter(Echo):
    """Goes on when its peer sends no more."""

    def on_half_close(self) -> None:
        pass


class Peer:
    """A raw connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def start(self, *frames: bytes) -> None:
        self.writer.write(http2.PREFACE + frame(SETTINGS, 0, 0) + b"".join(frames))

    async def read(self) -> tuple[int, int, int, bytes] | None:
        """The next frame that is not a setting, an update or an acknowledgement; None at the end."""
        while True:
            try:
                head = await asyncio.wait_for(self.reader.readexactly(9), 5)
            except (asyncio.IncompleteReadError, ConnectionError):
                return None
            payload = await self.reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] not in (SETTINGS, WINDOW):
                return head[3], head[4], int.from_bytes(head[5:], "big"), payload

    async def refused(self) -> int | None:
        """The code with which the connection ends."""
        while (found := await self.read()) is not None:
            if found[0] == GOAWAY:
                return int.from_bytes(found[3][4:8], "big")
        return None


@asynccontextmanager
async def serving(rule: AllowanceRule = RULE, connections: int = 10) -> AsyncIterator[tuple[int, PeerConnections]]:
    peers = PeerConnections(PeerBounds(MESSAGE_BYTES, BUDGET_BYTES, connections, STREAMS, rule), time.monotonic)
    Echo.calls = []
    server = await asyncio.get_running_loop().create_server(
        lambda: GrpcConnection({ECHO: Echo, WAITER: Waiter}, peers), "127.0.0.1", 0
    )
    try:
        yield server.sockets[0].getsockname()[1], peers
    finally:
        server.close()
        for connection in list(peers.connections):
            connection.abort()


@asynccontextmanager
async def peer() -> AsyncIterator[Peer]:
    async with serving() as (port, _):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        yield Peer(reader, writer)
        writer.close()


async def test_messages_come_back_whole_however_they_are_cut() -> None:
    async with peer() as p:
        both = message(b"a" * 40_000) + message(b"b")
        pieces = [both[:3], both[3:20_000], both[20_000:]]
        await p.start(headers(1), *(frame(DATA, 0, 1, piece) for piece in pieces), frame(DATA, 1, 1))
        seen = b""
        while (found := await p.read()) is not None and not (found[0] == HEADERS and found[1] & 1):
            seen += found[3] if found[0] == DATA else b""
        assert seen == both
        assert found is not None
        assert b"grpc-status\x010" in found[3]


async def test_a_retired_connection_serves_what_begins_before_the_peer_knows() -> None:
    async with serving() as (port, peers):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        p = Peer(reader, writer)
        await p.start(headers(1))
        await eventually(lambda: len(Echo.calls) == 1)
        for connection in peers.connections:
            connection.retire()
        assert await p.read() == (GOAWAY, 0, 0, struct.pack(">II", (1 << 31) - 1, 0))
        writer.write(headers(3, flags=5))  # sent before that was read
        found = await p.read()
        assert found is not None
        assert (found[0], found[2]) == (HEADERS, 3)
        assert b"grpc-status\x010" in found[3]
        writer.close()


def test_blocks_that_change_the_table_are_told_from_those_that_do_not() -> None:
    """By the decoder: a block that keeps the table is decoded alike afterwards, and the table is the same."""
    fields = [(":method", "POST"), (":path", "/a" * 100), ("x-a", "b"), ("te", "trailers")]
    encoder, decoder = hpack.Encoder(), hpack.Decoder()
    first = encoder.encode(fields)
    assert not keeps_table(first), "it makes entries"
    decoder.decode(first)
    again = encoder.encode(fields)
    before = list(decoder.header_table.dynamic_entries)
    assert keeps_table(again)
    assert decoder.decode(again) == decoder.decode(again)
    secret = hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple("x-key", "v" * 300)])
    assert keeps_table(secret)
    decoder.decode(secret)
    assert list(decoder.header_table.dynamic_entries) == before
    assert not keeps_table(again + b"\x00"), "cut off"
    assert not keeps_table(b"\x3f\xe1\x1f"), "another size of the table"


async def test_what_is_sent_keeps_to_the_windows_of_the_peer() -> None:
    async with peer() as p:
        small = struct.pack(">HI", 4, 1_000)
        p.writer.write(http2.PREFACE + frame(SETTINGS, 0, 0, small) + headers(1))
        p.writer.write(frame(DATA, 1, 1, message(b"x" * 5_000)))
        assert (await p.read() or (0,))[0] == HEADERS
        sent = (await p.read() or (0, 0, 0, b""))[3]
        assert len(sent) == 1_000
        p.writer.write(frame(WINDOW, 0, 1, struct.pack(">I", 100_000)))
        while (found := await p.read()) is not None and found[0] == DATA:
            sent += found[3]
        assert sent == message(b"x" * 5_000)


@pytest.mark.parametrize(
    ("frames", "code"),
    [
        ([frame(DATA, 0, 1, b"x")], http2.PROTOCOL_ERROR),  # of a call that was never opened
        ([headers(2)], http2.STREAM_CLOSED),
        ([headers(3), headers(1)], http2.STREAM_CLOSED),
        ([headers(1), headers(1)], http2.PROTOCOL_ERROR),
        ([headers(1), frame(DATA, 8, 1, b"\xff")], http2.PROTOCOL_ERROR),  # padding beyond the frame
        ([frame(HEADERS, 8, 1, b"")], http2.PROTOCOL_ERROR),
        ([frame(HEADERS, 4, 1, b"\xff\xff\xff\xff\xff\xff")], http2.COMPRESSION_ERROR),
        ([headers(1, flags=0), frame(PING, 0, 0, bytes(8))], http2.PROTOCOL_ERROR),  # amid headers
        ([frame(CONTINUATION, 4, 1, b"x")], http2.PROTOCOL_ERROR),
        ([headers(1, flags=0), *[frame(CONTINUATION, 0, 1, bytes(16_000))] * 5], http2.ENHANCE_YOUR_CALM),
        ([headers(1, flags=0), frame(CONTINUATION, 0, 1)], http2.ENHANCE_YOUR_CALM),
        ([frame(HEADERS, 0, 1, bytes(17_000))], http2.ENHANCE_YOUR_CALM),
        ([frame(HEADERS, 4, 1, bytes(17_000))], http2.ENHANCE_YOUR_CALM),
        ([frame(SETTINGS, 0, 0, bytes(6 * 20_000))], http2.ENHANCE_YOUR_CALM),
        ([headers(1, WAITER), frame(DATA, 1, 1, message(b"x")[:-1]), frame(DATA, 0, 1, b"x")], http2.STREAM_CLOSED),
        ([headers(1, WAITER, flags=5), headers(1, WAITER, flags=5)], http2.STREAM_CLOSED),
        ([frame(PUSH, 4, 1, bytes(4))], http2.PROTOCOL_ERROR),
        ([frame(PING, 0, 0, b"x")], http2.FRAME_SIZE_ERROR),
        ([frame(SETTINGS, 0, 0, b"x")], http2.FRAME_SIZE_ERROR),
        ([frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31))], http2.FLOW_CONTROL_ERROR),
        ([frame(SETTINGS, 0, 0, struct.pack(">HI", 5, 1))], http2.PROTOCOL_ERROR),
        ([frame(WINDOW, 0, 0, bytes(4))], http2.PROTOCOL_ERROR),
        ([frame(WINDOW, 0, 0, struct.pack(">I", http2.MAX_WINDOW))], http2.FLOW_CONTROL_ERROR),
        ([headers(1), frame(WINDOW, 0, 1, struct.pack(">I", http2.MAX_WINDOW))], http2.FLOW_CONTROL_ERROR),
        ([frame(RST, 0, 5, bytes(4))], http2.PROTOCOL_ERROR),
        ([b"\xff\xff\xff\x00\x00\x00\x00\x00\x01"], http2.FRAME_SIZE_ERROR),
    ],
)
async def test_whoever_breaks_the_protocol_is_cut_off(frames: list[bytes], code: int) -> None:
    async with peer() as p:
        await p.start(*frames)
        assert await p.refused() == code


async def test_what_is_not_http2_is_cut_off() -> None:
    async with peer() as p:
        p.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert await p.refused() == http2.PROTOCOL_ERROR


@pytest.mark.parametrize(("data", "status"), [(struct.pack(">BI", 0, MESSAGE_BYTES + 1), 8), (b"\1" + bytes(4), 12)])
async def test_messages_too_large_or_compressed_end_their_call_alone(data: bytes, status: int) -> None:
    async with peer() as p:
        await p.start(headers(1), frame(DATA, 0, 1, data), headers(3), frame(DATA, 1, 3, EMPTY))
        ends = [found async for found in all_of(p, 2)]
        assert b"grpc-status" + bytes((len(str(status)),)) + str(status).encode() in ends[0]
        assert b"grpc-status\x010" in ends[1]
        assert [call.gone for call in Echo.calls] == [1, 0]


async def all_of(p: Peer, count: int) -> AsyncIterator[bytes]:
    """The trailers of so many calls."""
    while count and (found := await p.read()) is not None:
        if found[0] == HEADERS and found[1] & 1:
            count -= 1
            yield found[3]


async def test_an_unknown_method_a_reset_and_frames_of_calls_that_are_over() -> None:
    async with peer() as p:
        await p.start(headers(1, b"/nobody"), frame(DATA, 1, 1, EMPTY), headers(3), frame(RST, 0, 3, bytes(4)))
        p.writer.write(frame(DATA, 0, 3, message(b"late")) + frame(77, 0, 0, b"?") + frame(PRIORITY, 0, 3, bytes(5)))
        p.writer.write(frame(PING, 0, 0, b"12345678"))
        found = await p.read()
        assert found is not None
        assert b"grpc-status\x0212" in found[3]
        assert await p.read() == (PING, 1, 0, b"12345678")
        assert [call.gone for call in Echo.calls] == [1]


async def test_so_many_connections_and_calls_and_no_more() -> None:
    async with serving(connections=1) as (port, peers):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        p = Peer(reader, writer)
        await p.start(*(headers(id) for id in range(1, 2 * STREAMS + 3, 2)))
        assert await p.read() == (RST, 0, 2 * STREAMS + 1, struct.pack(">I", http2.REFUSED_STREAM))
        other, unheard = await asyncio.open_connection("127.0.0.1", port)
        assert await asyncio.wait_for(other.read(), 5) == b""
        assert len(peers.connections) == 1
        writer.close()
        unheard.close()


async def test_messages_that_are_never_whole_are_bounded_over_all_connections() -> None:
    async with serving() as (port, connected):
        peers = [Peer(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(3)]
        begun = message(bytes(MESSAGE_BYTES))[:-1]
        for p in peers[:2]:
            await p.start(headers(1), frame(DATA, 0, 1, begun))
        await eventually(lambda: connected.partial_bytes == 2 * len(begun))
        await peers[2].start(headers(1), frame(DATA, 0, 1, begun))
        assert await peers[2].refused() == http2.ENHANCE_YOUR_CALM
        await eventually(lambda: len(connected.connections) == 2)
        assert connected.partial_bytes == 2 * len(begun)
        for p in peers:
            p.writer.close()


async def test_messages_that_are_never_sent_are_bounded_over_all_connections() -> None:
    """A peer lets nothing be sent and goes on asking."""
    async with serving() as (port, peers):
        p = Peer(*await asyncio.open_connection("127.0.0.1", port))
        await p.start(settings((WINDOW_SIZE, 0)), headers(1), frame(DATA, 0, 1, message(bytes(90_000))) * 3)
        assert await p.refused() == http2.ENHANCE_YOUR_CALM
        await eventually(lambda: not peers.connections)
        assert peers.unsent_bytes == 0
        p.writer.close()


async def test_calls_end_with_their_connection() -> None:
    async with serving() as (port, peers):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        await Peer(reader, writer).start(headers(1), frame(DATA, 0, 1, message(b"x")[:3]))
        await eventually(lambda: Echo.calls)
        writer.transport.abort()
        await eventually(lambda: not peers.connections)
        assert [call.gone for call in Echo.calls] == [1]


@given(
    st.lists(st.tuples(st.integers(0, 11), st.integers(0, 255), st.integers(0, 7), st.binary(max_size=40)), max_size=12)
)
def test_no_frames_break_anything(frames: list[tuple[int, int, int, bytes]]) -> None:
    """Whatever comes, the connection goes on or ends, and every call that began has ended with it."""

    async def run() -> None:
        async with serving() as (port, peers):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await Peer(reader, writer).start(headers(1), *(frame(*given_frame) for given_frame in frames))
            writer.write_eof()
            await asyncio.wait_for(reader.read(), 5)
            writer.close()
            await eventually(lambda: not peers.connections)
            assert all(call.stream.over for call in Echo.calls)

    asyncio.run(run())
