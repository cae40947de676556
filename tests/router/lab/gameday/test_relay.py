"""A relay that is cut and healed, between a real server and real connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from router.lab.gameday.relay import TcpRelay

SOON_S = 5.0


@asynccontextmanager
async def echo() -> AsyncIterator[int]:
    """The port of a server that sends back what it gets."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def say(connection: tuple[asyncio.StreamReader, asyncio.StreamWriter], text: bytes) -> bytes:
    reader, writer = connection
    writer.write(text)
    return await asyncio.wait_for(reader.readexactly(len(text)), SOON_S)


async def test_bytes_go_through_both_ways_and_the_end_as_well() -> None:
    async with echo() as port, TcpRelay("127.0.0.1", port) as relay:
        reader, writer = connection = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await say(connection, b"one") == b"one"
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), SOON_S) == b""
        writer.close()


async def test_what_is_sent_while_it_stalls_arrives_afterwards() -> None:
    async with echo() as port, TcpRelay("127.0.0.1", port) as relay:
        before = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await say(before, b"one") == b"one"
        relay.stall()
        later = await asyncio.open_connection("127.0.0.1", relay.port)  # it is accepted, as by a frozen process
        answers = [asyncio.ensure_future(say(one, b"two")) for one in (before, later)]
        done, _ = await asyncio.wait(answers, timeout=0.1)
        assert not done
        await relay.heal()
        assert await asyncio.gather(*answers) == [b"two", b"two"]
        for _, writer in (before, later):
            writer.close()


async def test_refusing_resets_and_refuses_until_it_is_healed_on_the_same_port() -> None:
    async with echo() as port, TcpRelay("127.0.0.1", port) as relay:
        before = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await say(before, b"one") == b"one"
        relay.refuse()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await say(before, b"two")
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", relay.port)
        await relay.heal()
        after = await asyncio.open_connection("127.0.0.1", relay.port)
        assert await say(after, b"three") == b"three"
        for _, writer in (before, after):
            writer.close()


async def test_a_server_that_is_gone_is_a_reset() -> None:
    async with echo() as port:
        pass
    async with TcpRelay("127.0.0.1", port) as relay:
        connection = await asyncio.open_connection("127.0.0.1", relay.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await say(connection, b"one")
        connection[1].close()


async def test_connections_are_spread_and_go_on_where_one_port_refuses() -> None:
    async with greeter(b"a") as one:
        async with greeter(b"b") as other, TcpRelay("127.0.0.1", one, other) as relay:
            assert sorted([await greeting(relay.port) for _ in range(4)]) == [b"a", b"a", b"b", b"b"]
            many = await asyncio.gather(*(greeting(relay.port) for _ in range(20)))
            assert sorted(many) == [b"a"] * 10 + [b"b"] * 10
        async with TcpRelay("127.0.0.1", one, other) as relay:
            assert {await greeting(relay.port) for _ in range(4)} == {b"a"}
    async with TcpRelay("127.0.0.1", one, other) as relay:
        with suppress(ConnectionResetError):
            assert await greeting(relay.port) == b""


@asynccontextmanager
async def greeter(text: bytes) -> AsyncIterator[int]:
    """The port of a server that sends a text to whoever connects."""

    def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(text)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def greeting(port: int) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await asyncio.wait_for(reader.read(), SOON_S)
    finally:
        writer.close()
