"""The in-memory network behaves as TCP does, as far as the router can tell."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from router.lab.rng import Rng
from tests.simulation.loop import VirtualLoop
from tests.simulation.network import HOST, Network
from tests.simulation.transport import WINDOW_BYTES

Story = Callable[["Pair"], Awaitable[None]]


class Side(asyncio.Protocol):
    """One end, with what happened to it."""

    transport: Any

    def __init__(self) -> None:
        self.data = bytearray()
        self.ended = False
        self.lost: list[Exception | None] = []
        self.paused = 0

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data

    def eof_received(self) -> bool:
        self.ended = True
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)

    def pause_writing(self) -> None:
        self.paused += 1

    def resume_writing(self) -> None:
        self.paused -= 1


class Pair:
    """A client on host `a`, connected to a server on host `b`."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.client, self.server = Side(), Side()

    async def connect(self) -> None:
        HOST.set("a")
        self.network.serve(lambda: self.server, "b", 80)
        await self.network.connect(lambda: self.client, "b", 80)


@pytest.fixture
def play() -> Iterator[Callable[[Story], None]]:
    """`play(story)`: run a story with a connected pair, to its end."""
    loop = VirtualLoop(Rng(1))
    loop.network = Network(loop, Rng(2))

    async def tell(story: Story) -> None:
        pair = Pair(loop.network)
        await pair.connect()
        await story(pair)

    yield lambda story: loop.run_until_complete(tell(story))
    loop.close()


def test_bytes_arrive_in_order_and_then_the_end(play: Any) -> None:
    async def story(pair: Pair) -> None:
        sent = os.urandom(300_000)
        pair.client.transport.write(sent)
        pair.client.transport.write_eof()
        await asyncio.sleep(10)
        assert (bytes(pair.server.data), pair.server.ended, pair.server.lost) == (sent, True, [])
        pair.server.transport.close()
        await asyncio.sleep(1)
        assert (pair.server.lost, pair.client.ended) == ([None], True)

    play(story)


def test_a_reader_that_pauses_stops_the_writer(play: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.server.transport.pause_reading()
        pair.client.transport.write(bytes(3 * WINDOW_BYTES))
        await asyncio.sleep(10)
        assert pair.client.transport.get_write_buffer_size() == 2 * WINDOW_BYTES
        assert (pair.client.paused, len(pair.server.data)) == (1, 0)
        pair.server.transport.resume_reading()
        await asyncio.sleep(10)
        assert (pair.client.paused, len(pair.server.data)) == (0, 3 * WINDOW_BYTES)

    play(story)


def test_a_socket_is_readable_while_something_is_unread(play: Any) -> None:
    async def story(pair: Pair) -> None:
        poll = select.poll()
        poll.register(pair.server.transport.get_extra_info("socket"), select.POLLIN)
        pair.server.transport.pause_reading()
        pair.client.transport.write(b"x")
        assert not poll.poll(0)
        await asyncio.sleep(1)
        assert poll.poll(0)
        pair.server.transport.resume_reading()
        await asyncio.sleep(1)
        assert not poll.poll(0)

    play(story)


def test_a_reset_is_seen_after_what_arrived_before_it(play: Any) -> None:
    async def story(pair: Pair) -> None:
        linger = struct.pack("ii", 1, 0)
        pair.client.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        pair.client.transport.write(b"last")
        pair.client.transport.abort()
        await asyncio.sleep(1)
        assert bytes(pair.server.data) == b"last"
        assert [type(error) for error in pair.server.lost] == [ConnectionResetError]

    play(story)


def test_a_stalled_link_delivers_when_it_heals(play: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.network.set_link("a", "b", "stalled")
        pair.client.transport.write(b"late")
        connecting = asyncio.get_running_loop().create_task(pair.network.connect(Side, "b", 80))
        await asyncio.sleep(60)
        assert not pair.server.data
        assert not connecting.done()
        pair.network.set_link("a", "b", "up")
        await asyncio.sleep(1)
        assert pair.server.data == b"late"
        assert connecting.done()

    play(story)


def test_a_host_without_power_is_found_out_by_sending(play: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.network.crash("b", silently=True)
        await asyncio.sleep(60)
        assert pair.client.lost == []
        pair.client.transport.write(b"hello?")
        await asyncio.sleep(1)
        assert [type(error) for error in pair.client.lost] == [ConnectionResetError]

    play(story)


def test_a_refused_link_resets_and_refuses(play: Any) -> None:
    async def story(pair: Pair) -> None:
        pair.network.set_link("a", "b", "refused")
        await asyncio.sleep(1)
        lost = [type(error) for error in (*pair.client.lost, *pair.server.lost)]
        assert lost == [ConnectionResetError, ConnectionResetError]
        with pytest.raises(ConnectionRefusedError):
            await pair.network.connect(Side, "b", 80)
        assert pair.network.open_ends == 0

    play(story)
