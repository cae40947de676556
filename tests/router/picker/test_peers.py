"""How much of the event loop the peers of a listener get, whatever they send."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from typing import Any

import pytest

from router.clock import ManualClock
from router.picker import http2
from router.picker.allowance import AllowanceRule
from router.picker.grpc_stream import GrpcStream
from router.picker.http2 import GrpcConnection
from router.picker.peers import GATEWAYS, QUESTIONS, PeerBounds, PeerConnections
from tests.fakes.engines import eventually
from tests.fakes.http2 import (
    CONTINUATION,
    DATA,
    HEADERS,
    PING,
    PREFACE,
    PRIORITY,
    RST,
    WINDOW_SIZE,
    frame,
    headers,
    ids,
    message,
    settings,
    window,
)

PATH = b"/test/Work"
RULE = AllowanceRule(start=100, per_s=10, most=100, message=0, end=0, connections=10)
PLENTY = AllowanceRule(start=1e9, per_s=0, most=1e9, message=0, end=0, connections=10)
WORK = b"a message of a gateway"
SETTLED = 10  # turns of the loop


class Transport(asyncio.Transport):
    """Keeps what is written, and notes whether it is read."""

    def __init__(self, address: str) -> None:
        super().__init__({"peername": (address, 4711)})
        self.written = b""
        self.closed = False
        self.reads = True

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True

    def frames(self, kind: int) -> int:
        """How many frames of this kind were written."""
        at = found = 0
        while at < len(self.written):
            found += self.written[at + 3] == kind
            at += 9 + int.from_bytes(self.written[at : at + 3], "big")
        return found


class Worker:
    """A handler that takes its listener's `work_s` for each message, and answers it."""

    def __init__(self, listener: Listener, stream: GrpcStream) -> None:
        self.listener = listener
        self.stream = stream
        listener.workers.append(self)

    def on_message(self, data: bytes) -> None:
        self.listener.clock.advance(self.listener.work_s)
        self.listener.seen.append(data)
        self.stream.send(data)

    def on_half_close(self) -> None:
        self.listener.seen.append(b"half closed")
        self.stream.finish()

    def on_gone(self) -> None:
        self.listener.clock.advance(self.listener.work_s)
        self.listener.gone += 1


class Listener:
    """The connections of a listener, at a clock of their own."""

    def __init__(self, rule: AllowanceRule = PLENTY, work_s: float = 0.0) -> None:
        self.work_s = work_s
        self.clock = ManualClock()
        self.peers = PeerConnections(PeerBounds(1 << 20, 1 << 24, 10, 20_000, rule), self.clock.now)
        self.workers: list[Worker] = []
        self.seen: list[bytes] = []
        self.gone = 0

    def connect(self, address: str = "192.0.2.1") -> tuple[GrpcConnection, Transport]:
        transport = Transport(address)
        connection = GrpcConnection({PATH: lambda stream: Worker(self, stream)}, self.peers)
        connection.connection_made(transport)
        if not transport.closed:
            connection.data_received(PREFACE)
        return connection, transport


async def turns(count: int = SETTLED) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def call(id: int, *messages: bytes, flags: int = 0) -> bytes:
    return headers(id, PATH) + frame(DATA, flags, id, b"".join(message(data) for data in messages))


# slices


@pytest.mark.parametrize("framed", [False, True])
async def test_a_turn_takes_no_more_than_a_slice(framed: bool) -> None:
    """Of many frames, and of many messages in one; nothing is lost, reordered or ended before its time."""
    listener = Listener(work_s=0.001)
    connection, transport = listener.connect()
    numbers = [b"%d" % n for n in range(50)]
    pieces = b"".join(frame(DATA, n == b"49", 1, message(n)) for n in numbers)
    connection.data_received(headers(1, PATH) + pieces if framed else call(1, *numbers, flags=1))
    assert 3 <= len(listener.seen) <= 5
    assert not transport.reads
    connection.data_received(call(3, b"later"))
    await turns(1)
    assert 6 <= len(listener.seen) <= 10
    await turns(20)
    assert listener.seen == [*numbers, b"half closed", b"later"]
    assert transport.reads


async def test_all_connections_share_the_slice_of_a_turn_oldest_first() -> None:
    listener = Listener(work_s=0.001)
    connected = [listener.connect(f"192.0.2.{n}") for n in range(5)]
    for n, (connection, _) in enumerate(connected):
        connection.data_received(call(1, *[b"%d" % n] * 4))
    assert len(listener.seen) <= 5
    assert [transport.reads for _, transport in connected] == [True, False, False, False, False]
    await turns(1)
    assert len(listener.seen) <= 10
    await turns()
    assert listener.seen == [b"%d" % n for n in range(5) for _ in range(4)]
    assert all(transport.reads for _, transport in connected)


async def test_the_calls_of_a_lost_connection_end_in_slices() -> None:
    listener = Listener(work_s=0.001)
    connection, _ = listener.connect()
    connection.data_received(b"".join(headers(id, PATH) for id in ids(50)))
    connection.connection_lost(None)
    assert listener.gone <= 5
    await turns(20)
    assert listener.gone == 50
    assert not listener.peers.connections


# allowance

CHEAP: dict[str, Callable[[int], bytes]] = {
    "SETTINGS": lambda n: settings(),
    "SETTINGS that are acknowledged": lambda n: frame(4, 1, 0),
    "PING": lambda n: frame(PING, 0, 0, bytes(8)),
    "PRIORITY": lambda n: frame(PRIORITY, 0, 1, bytes(5)),
    "unknown": lambda n: frame(77, 0, 0, bytes(2000)),
    "windows": lambda n: window(n % 2, 1),
    "empty data": lambda n: frame(DATA, 0, 1),
    "padding": lambda n: frame(DATA, 8, 1, b"\xff" + bytes(300)),
    "data of calls that are over": lambda n: frame(DATA, 0, 1, bytes(2000)),
    "tiny messages": lambda n: frame(DATA, 0, 1, message(b"x") * 30),
    "calls": lambda n: headers(2 * n + 3, PATH),
    "calls that are reset": lambda n: headers(2 * n + 3, PATH) + frame(RST, 0, 2 * n + 3, bytes(4)),
    "unknown methods": lambda n: headers(2 * n + 3, b"/none"),
    "refused messages": lambda n: headers(2 * n + 3, PATH) + frame(DATA, 0, 2 * n + 3, b"\1" + bytes(4)),
    "continued headers": lambda n: frame(CONTINUATION, 0, 3, b"\x82"),
}


@pytest.mark.parametrize("what", CHEAP)
async def test_an_address_without_allowance_waits_for_it(what: str) -> None:
    """It is neither read nor cut off, and what it sent is taken at the rate that it may have."""
    listener = Listener(RULE)
    connection, transport = listener.connect()
    begun = frame(HEADERS, 0, 3, b"\x82") if what == "continued headers" else b""
    over = frame(RST, 0, 1, bytes(4)) if "over" in what else b""
    connection.data_received(headers(1, PATH) + over + begun)
    for n in range(400):
        if transport.reads:
            connection.data_received(CHEAP[what](n))
            await turns()
    taken, left = n, connection.allowance.left
    assert -20 <= left <= 0
    assert (transport.reads, transport.closed) == (False, False)
    listener.clock.advance(8.0)
    await eventually(lambda: transport.reads)
    assert connection.allowance.left > 0, "8 s times 10 a second, less what waited"
    assert taken < 400


async def test_others_do_not_wait_for_an_address_without_allowance() -> None:
    listener = Listener(RULE)
    flooding, paced = listener.connect()
    flooding.data_received(settings() * 1000)
    await turns()
    assert not paced.reads
    asking, read = listener.connect("192.0.2.2")
    asking.data_received(call(1, WORK))
    assert listener.seen == [WORK]
    assert read.reads
    again, refused = listener.connect()
    assert refused.closed, "nor does a new connection help it"
    assert again not in listener.peers.connections


async def test_who_reads_again_is_not_read_before_it_may_be() -> None:
    listener = Listener(RULE)
    connection, transport = listener.connect()
    connection.pause_writing()
    connection.resume_writing()
    assert transport.reads
    connection.data_received(settings() * 1000)
    connection.pause_writing()
    connection.resume_writing()
    await turns()
    assert not transport.reads
    connection.pause_writing()
    listener.clock.advance(1000.0)
    await asyncio.sleep(3 * 0.05)
    assert not transport.reads, "it does not read what it was sent"
    connection.resume_writing()
    await eventually(lambda: not transport.reads and connection.allowance.left <= 0)  # it went on
    connection.connection_lost(None)


async def test_a_frame_byte_by_byte_costs_a_frame_a_byte() -> None:
    listener = Listener(RULE)
    connection, transport = listener.connect()
    connection.data_received(headers(1, PATH))
    for byte in frame(DATA, 0, 1, bytes(2000))[:1000]:
        if transport.reads:
            connection.data_received(bytes((byte,)))
    assert not transport.reads


BODY_ENDS = b"\x1a\x02\x10\x01"  # a message that says that and no more


def sent(id: int, *messages: bytes) -> bytes:
    """A call with each message in a frame of its own, as a gateway sends them."""
    return headers(id, PATH) + b"".join(frame(DATA, 0, id, message(data)) for data in messages)


@pytest.mark.parametrize(
    "messages",
    [
        (
            WORK,
            WORK,
            BODY_ENDS,
            WORK,
            WORK,
            BODY_ENDS,
        ),  # a prompt and its answer; bodies end by a message
        (WORK, WORK, WORK),  # the same in the thin profile
        (WORK, WORK, WORK, BODY_ENDS),  # a request without a body
        (WORK, WORK),  # a refusal
    ],
)
async def test_a_gateway_is_never_held_up(messages: tuple[bytes, ...]) -> None:
    """By thousands of requests in no time, of the smallest messages that there are."""
    listener = Listener(GATEWAYS)
    connection, transport = listener.connect()
    connection.data_received(window(0, 1 << 30))
    for id in ids(5_000):
        connection.data_received(sent(id, *messages) + frame(DATA, 1, id))
    assert (transport.reads, len(connection.streams)) == (True, 0)
    assert GATEWAYS.start < connection.allowance.left <= GATEWAYS.most + GATEWAYS.message


async def test_a_gateway_is_never_held_up_when_its_clients_hang_up() -> None:
    """Ten thousand requests, each reset before its answer."""
    listener = Listener(GATEWAYS)
    connection, transport = listener.connect()
    for id in ids(10_000):
        connection.data_received(sent(id, WORK, WORK, BODY_ENDS) + frame(RST, 0, id, bytes(4)))
    assert transport.reads
    assert len(listener.seen) == 30_000


@pytest.mark.parametrize("rule", [GATEWAYS, QUESTIONS])
async def test_rapid_reset_is_held_up(rule: AllowanceRule) -> None:
    listener = Listener(rule)
    connection, transport = listener.connect()
    for id in ids(10_000):
        if transport.reads:
            connection.data_received(call(id, WORK) + frame(RST, 0, id, bytes(4)))
    await turns()
    assert not transport.reads
    assert len(listener.workers) <= rule.start


# work per frame


async def test_windows_that_grow_are_looked_at_by_those_that_can_send() -> None:
    listener = Listener()
    connection, transport = listener.connect()
    connection.data_received(settings((WINDOW_SIZE, 0)) + b"".join(call(id, WORK) for id in ids(100)))
    await turns(30)
    assert (len(listener.seen), len(connection.blocked)) == (100, 0), "they wait for their own windows"
    flips = struct.pack(">HI", WINDOW_SIZE, 1) + struct.pack(">HI", WINDOW_SIZE, 0)
    connection.data_received(frame(4, 0, 0, flips * 80) + settings() * 10 + window(0, 1))
    await turns(30)
    assert transport.frames(DATA) == 0, "of several values the last one counts"
    connection.data_received(settings((WINDOW_SIZE, 5)) + window(1, 1000))
    await turns(30)
    assert transport.frames(DATA) == 101
    connection.window = 3
    connection.data_received(settings((WINDOW_SIZE, 10)))
    await turns(30)
    assert transport.frames(DATA) == 102, "no more than the connection's window has"
    assert len(connection.blocked) == 99
    connection.data_received(window(0, 100_000))
    await turns(30)
    assert connection.blocked == {}


async def test_a_call_whose_first_message_does_not_come_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does it help to send a part of one, or to say that nothing more comes."""
    monkeypatch.setattr(http2, "FIRST_MESSAGE_S", 0.02)
    listener = Listener()
    connection, transport = listener.connect()
    silent = headers(1, PATH) + headers(3, PATH) + frame(DATA, 0, 3, message(WORK)[:-1])
    connection.data_received(silent + call(5, WORK))
    listener.clock.advance(1.0)
    await eventually(lambda: list(connection.streams) == [5])
    assert listener.gone == 2
    await turns()
    assert transport.written.count(b"grpc-status\x014") == 2
    connection.data_received(headers(7, PATH))
    listener.clock.advance(1.0)
    await eventually(lambda: list(connection.streams) == [5])
    connection.connection_lost(None)
