"""What clients may send, and what becomes of those who send something else. Raw bytes over real sockets."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, example, given
from hypothesis import strategies as st

from router.config.sections.listeners import ListenConfig
from router.proxy.call import ClientDisconnected
from router.proxy.client_connection import AHEAD_BYTES, SLICE_BYTES
from router.proxy.client_exchange import ClientExchange
from router.proxy.connection_limits import BODY_GRACE_S
from router.proxy.listener import HttpListener, configure_server
from tests.patience import PATIENCE_S
from tests.router.proxy.connections import BareHandler
from tests.suites.properties import examples


class Echo(BareHandler):
    """Answers with method, target and body. `/hang` never ends; `/early` answers before it reads; `/flood` never stops
    talking; `/large` answers with 2 MB; `/late` runs on after its answer; `/fault` breaks, `/half` in the middle of
    its answer."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, bytes, bytes]] = []
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self.begun = 0
        self.gone = 0
        self.hanging = asyncio.Event()
        self.proceed = asyncio.Event()

    async def answer(self, call: ClientExchange) -> None:
        try:
            with call:
                await self._answer(call)
        except ClientDisconnected:
            self.gone += 1

    async def _answer(self, call: ClientExchange) -> None:
        self.begun += 1
        if call.path == "/early":
            call.answer(413, [], b"early")
            return
        body = await call.body(1 << 30, self)
        self.seen.append((call.method, call.target, body))
        self.headers.append(call.headers)
        if call.path == "/hang":
            self.hanging.set()
            await asyncio.Event().wait()
        if call.path == "/flood":
            call.start(200, [])
            while True:
                call.write(b"x" * 65536)
                await call.drain()
        if call.path == "/large":
            call.answer(200, [], bytes(2_000_000))
            return
        if call.path == "/late":
            call.answer(200, [], b"late")
            self.hanging.set()
            await self.proceed.wait()
            return
        if call.path == "/stream":
            call.start(200, [])
            for piece in (b"one", b"two"):
                call.write(piece)
            call.finish()
            return
        if call.path == "/fault":
            raise RuntimeError("a fault of ours")
        if call.path == "/half":
            call.start(200, [])
            call.write(b"half")
            return
        call.answer(200, [(b"x-seen", b"%d" % len(self.seen))], b"%b %b" % (call.target, body))

    def hold(self, bytes_: int) -> None:
        pass


class House:
    def __init__(self, app: Echo, listener: HttpListener) -> None:
        self.app = app
        self.listener = listener
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        self._writers.append(writer)
        return reader, writer

    async def talk(self, data: bytes) -> bytes:
        """Sends `data` and gives all that comes until the server closes."""
        reader, writer = await self.connect()
        writer.write(data)
        return await rest(reader)

    def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


async def rest(reader: asyncio.StreamReader) -> bytes:
    got = b""
    async with asyncio.timeout(PATIENCE_S):
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                got += data
    return got


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    async with asyncio.timeout(PATIENCE_S):
        head = await reader.readuntil(b"\r\n\r\n")
        return head, await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))


@asynccontextmanager
async def serving(
    stall_timeout_s: float = 60.0, body_grace_s: float = BODY_GRACE_S, **listen: Any
) -> AsyncIterator[House]:
    app, where = Echo(), ListenConfig(host="127.0.0.1", port=0, **listen)
    server = configure_server(app, where, stall_timeout_s=stall_timeout_s)
    listener = HttpListener(replace(server, limits=server.limits._replace(body_grace_s=body_grace_s)))
    await listener.start()
    house = House(app, listener)
    try:
        yield house
    finally:
        house.close()
        await listener.stop(0)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110  any condition, not an event
            await asyncio.sleep(0.005)


GET = b"GET /a HTTP/1.1\r\nHost: r\r\n\r\n"
CHUNKED = b"POST /a HTTP/1.1\r\nHost: r\r\nTransfer-Encoding: chunked\r\n\r\n"

POST = b"POST / HTTP/1.1\r\nHost: r\r\n"

OFFER = (
    b"POST / HTTP/1.1\r\nHost: r\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n"
)
REFUSED = {
    "CL and TE": POST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "TE and CL": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
    "two lengths": POST + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "the same length twice": POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "a signed length": POST + b"Content-Length: +3\r\n\r\nabc",
    "a negative length": POST + b"Content-Length: -3\r\n\r\nabc",
    "a hexadecimal length": POST + b"Content-Length: 0x3\r\n\r\nabc",
    "a length beyond 64 bits": POST + b"Content-Length: 18446744073709551617\r\n\r\nabc",
    "no digits": POST + b"Content-Length: \r\n\r\nabc",
    "chunked, identity": POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "identity": POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "gzip, chunked": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "xchunked": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "then identity": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a vertical tab": POST + b"Transfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a folded line": b"GET / HTTP/1.1\r\nHost: r\r\nX: a\r\n b\r\n\r\n",
    "a folded coding": POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "bare line feeds": b"GET / HTTP/1.1\nHost: a\n\n",
    "one bare line feed": b"GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
    "a bare carriage return": b"GET / HTTP/1.1\r\nHost: a\rX: b\r\n\r\n",
    "a space before the colon": POST + b"Content-Length : 3\r\n\r\nabc",
    "a space before the name": b"GET / HTTP/1.1\r\nHost: r\r\n Host: a\r\n\r\n",
    "a NUL": b"GET / HTTP/1.1\r\nHost: r\r\nX: a\x00b\r\n\r\n",
    "no name": b"GET / HTTP/1.1\r\nHost: r\r\n: x\r\n\r\n",
    "a chunk beyond 64 bits": CHUNKED + b"fffffffffffffffff\r\nabc",
    "a negative chunk": CHUNKED + b"-1\r\nabc",
    "0x in a chunk": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a space in a chunk": CHUNKED + b"3 \r\nabc\r\n0\r\n\r\n",
    "line feeds in chunks": CHUNKED + b"3\nabc\n0\n\n",
    "a line feed in an extension": CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "a length in the trailers": CHUNKED + b"3\r\nabc\r\n0\r\nContent-Length: 5\r\n\r\n",
    "an upgrade and two lengths": OFFER.replace(b"\r\n\r\n", b"\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n"),
    "an upgrade and both lengths": OFFER.replace(
        b"\r\n\r\n", b"\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n"
    ),
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "the same host twice": b"GET / HTTP/1.1\r\nHost: a\r\nX: y\r\nhost: a\r\n\r\n",
    "two hosts in HTTP/1.0": b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n",
    "a host with a path": b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
    "a host with a user": b"GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
    "a host with a space": b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
    "a list of hosts in one": b"GET / HTTP/1.1\r\nHost: a\tb\r\n\r\n",
    "a host that is not ASCII": b"GET / HTTP/1.1\r\nHost: \xc3\xa4\r\n\r\n",
    "an absolute target without a host": b"GET http://a/ HTTP/1.1\r\n\r\n",
    "CONNECT": b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n",
    "not ASCII": b"GET /\xff HTTP/1.1\r\nHost: r\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}


@pytest.mark.parametrize("data", REFUSED.values(), ids=REFUSED.keys())
async def test_what_could_be_read_in_two_ways_is_refused_and_the_connection_closed(data):
    async with serving() as house:
        said = await house.talk(data + GET)
        assert said.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" in said
        assert said.count(b"HTTP/1.1") == 1
        assert house.app.seen == []


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9), id="an HTTP/2 preface"),
        pytest.param(b"GET / HTTP/2.0\r\nHost: a\r\n\r\n", id="HTTP/2.0"),
        pytest.param(b"GET /\r\n\r\n", id="HTTP/0.9"),
    ],
)
async def test_another_version_of_http_is_refused_as_such(data):
    async with serving() as house:
        said = await house.talk(data)
        assert said.startswith(b"HTTP/1.1 505 ")
        assert b"connection: close" in said
        assert house.app.seen == []


@pytest.mark.parametrize("host", [b"", b"a.b:80", b"[::1]:8000", b"127.0.0.1", b"x_y-z%20~"])
async def test_a_host_and_a_port_pass(host):
    async with serving() as house:
        reader, writer = await house.connect()
        writer.write(b"GET /a HTTP/1.1\r\nHost:%b\r\n\r\n" % host)
        assert (await answer(reader))[1] == b"/a "


@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_an_offer_of_another_protocol_is_ignored(size):
    """The request is read with its body, and what is pipelined behind it; in pieces of any size."""
    with_body = OFFER.replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\nhello")
    data = with_body + OFFER.replace(b"POST", b"GET") + with_body + GET
    async with serving() as house:
        reader, writer = await house.connect()
        for start in range(0, len(data), size):
            writer.write(data[start : start + size])
            await asyncio.sleep(0)
        for expected in (b"/ hello", b"/ ", b"/ hello", b"/a "):
            head, said = await answer(reader)
            assert head.startswith(b"HTTP/1.1 200 ")
            assert said == expected
        writer.close()


async def test_nothing_after_connection_close_is_read():
    async with serving() as house:
        said = await house.talk(b"GET /a HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n" + GET)
        assert said.count(b"HTTP/1.1") == 1
        assert [target for _, target, _ in house.app.seen] == [b"/a"]


async def test_trailers_do_not_become_headers():
    async with serving() as house:
        reader, writer = await house.connect()
        writer.write(CHUNKED + b"3\r\nabc\r\n0\r\nAuthorization: Bearer stolen\r\n\r\n")
        assert (await answer(reader))[1] == b"/a abc"
        assert b"authorization" not in dict(house.app.headers[0])


async def test_chunked_bodies_with_extensions_pass():
    async with serving() as house:
        reader, writer = await house.connect()
        writer.write(CHUNKED + b"3;a=b\r\nabc\r\n")
        writer.write(b"2\r\nde\r\n0\r\n\r\n")
        assert (await answer(reader))[1] == b"/a abcde"


@pytest.mark.parametrize(
    "piece",
    [
        pytest.param(b"1;" + b"x" * 8000 + b"\r\na\r\n", id="extensions"),
        pytest.param(b"0\r\n" + b"X-T: y\r\n" * 1000, id="trailers"),
    ],
)
async def test_framing_that_outweighs_the_body_is_refused(piece):
    async with serving(header_bytes=4096) as house:
        reader, writer = await house.connect()
        writer.write(CHUNKED)
        await until(lambda: house.app.begun == 1)
        writer.write(piece)
        assert (await rest(reader)).startswith(b"HTTP/1.1 400")


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"GET / HTTP/1.1\r\nHost: r\r\nX: " + b"a" * 3000, id="a value without end"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 600, id="headers without end"),
        pytest.param(b"GET /" + b"a" * 3000, id="a target without end"),
        pytest.param(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 600 + b"\r\n", id="a whole head"),
    ],
)
async def test_a_head_over_the_cap_is_refused(head):
    async with serving(header_bytes=2048) as house:
        said = await house.talk(head)
        assert said.startswith(b"HTTP/1.1 431")
        assert house.app.seen == []


async def test_a_second_head_over_the_cap_in_the_same_read_is_refused_after_the_answer_to_the_first():
    async with serving(header_bytes=2048) as house:
        said = await house.talk(GET + b"GET /b HTTP/1.1\r\nHost: r\r\nX: " + b"a" * 3000 + b"\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 200 ")
        assert said.count(b"HTTP/1.1 ") == 2
        assert b"/a HTTP/1.1 431 " in said
        assert [target for _, target, _ in house.app.seen if target == b"/b"] == []


async def test_a_head_under_the_cap_passes_with_a_body_over_it():
    async with serving(header_bytes=512) as house:
        reader, writer = await house.connect()
        body = b"b" * 100_000
        for _ in range(2):
            head = b"POST /a HTTP/1.1\r\nHost: r\r\nX: " + b"a" * 400 + b"\r\nContent-Length: 100000\r\n\r\n"
            writer.write(head + body)
            assert (await answer(reader))[1] == b"/a " + body


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost:", b"\r\n"])
async def test_slowloris_is_cut(sent):
    async with serving(header_timeout_s=0.1) as house:
        reader, writer = await house.connect()
        writer.write(sent)
        said = await rest(reader)
        assert said == b"" or said.startswith(b"HTTP/1.1 408")
        await until(lambda: house.listener.connections == 0)


async def test_a_dripping_head_is_cut_by_the_deadline_of_its_first_byte():
    async with serving(header_timeout_s=0.15) as house:
        reader, writer = await house.connect()
        task = asyncio.ensure_future(rest(reader))
        async with asyncio.timeout(PATIENCE_S):
            while not task.done():
                with suppress(RuntimeError):
                    writer.write(b"X")
                await asyncio.sleep(0.01)


async def test_a_second_head_has_a_deadline_too():
    async with serving(header_timeout_s=0.1) as house:
        reader, writer = await house.connect()
        writer.write(GET)
        await answer(reader)
        writer.write(b"GET / HT")
        assert (await rest(reader)).startswith(b"HTTP/1.1 408")


async def test_a_body_that_pauses_too_long_is_cut():
    async with serving(body_idle_timeout_s=0.1) as house:
        said = await house.talk(b"POST /a HTTP/1.1\r\nHost: r\r\nContent-Length: 10\r\n\r\nabc")
        assert said.startswith(b"HTTP/1.1 408")
        await until(lambda: house.app.gone == 1)


async def test_a_body_that_keeps_coming_may_take_longer_than_the_pause():
    async with serving(body_idle_timeout_s=1.0) as house:
        reader, writer = await house.connect()
        writer.write(b"POST /a HTTP/1.1\r\nHost: r\r\nContent-Length: 8\r\n\r\n")
        for _ in range(8):
            await asyncio.sleep(0.15)
            writer.write(b"x")
        assert (await answer(reader))[1] == b"/a xxxxxxxx"


@pytest.mark.parametrize("at_first", [b"", b"x" * 100_000], ids=["from the start", "after much at once"])
async def test_a_body_below_the_lowest_rate_is_cut(at_first):
    async with serving(body_grace_s=0.2) as house:
        reader, writer = await house.connect()
        writer.write(b"POST /a HTTP/1.1\r\nHost: r\r\nContent-Length: 1000000\r\n\r\n" + at_first)
        said = asyncio.ensure_future(rest(reader))
        while not said.done():
            await asyncio.wait([said], timeout=0.02)  # 50 bytes per second, of 500
            writer.write(b"x")
        assert said.result().startswith(b"HTTP/1.1 408")
        await until(lambda: house.app.gone == 1)


async def test_a_body_above_the_lowest_rate_may_take_longer_than_the_grace():
    async with serving(body_grace_s=0.2) as house:
        reader, writer = await house.connect()
        writer.write(b"POST /a HTTP/1.1\r\nHost: r\r\nContent-Length: 50000\r\n\r\n")
        for _ in range(10):
            writer.write(b"x" * 5000)  # at first, so that a late wake-up is not below the rate
            await asyncio.sleep(0.05)
        assert len((await answer(reader))[1]) == 50_003


async def test_a_slow_answer_is_not_cut_by_the_request_deadlines():
    async with serving(body_idle_timeout_s=0.05, header_timeout_s=0.05) as house:
        _, writer = await house.connect()
        writer.write(b"POST /hang HTTP/1.1\r\nHost: r\r\nContent-Length: 2\r\n\r\n{}")
        await house.app.hanging.wait()
        await asyncio.sleep(0.15)
        assert (house.listener.connections, house.app.gone) == (1, 0)


async def test_a_reader_that_never_reads_is_cut():
    async with serving(stall_timeout_s=0.1) as house:
        _, writer = await house.connect()
        writer.transport.pause_reading()
        writer.write(b"GET /flood HTTP/1.1\r\nHost: r\r\n\r\n")
        await until(lambda: house.app.gone == 1)


async def test_no_further_request_is_served_before_the_client_reads():
    async with serving() as house:
        reader, writer = await house.connect()
        writer.transport.pause_reading()
        for _ in range(8):
            writer.write(b"GET /large HTTP/1.1\r\nHost: r\r\n\r\n")
            await asyncio.sleep(0.01)
        await until(lambda: any(connection.write_paused for connection in house.listener._connections))
        (connection,) = house.listener._connections
        served = house.app.begun
        assert served < 8  # the system's own buffers took these
        assert connection.transport.get_write_buffer_size() < 2_100_000
        await asyncio.sleep(0.05)
        assert house.app.begun == served
        writer.transport.resume_reading()
        for _ in range(8):
            async with asyncio.timeout(PATIENCE_S):
                await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(2_000_000)


@pytest.mark.parametrize("ends", [False, True], ids=["goes on sending", "has sent all"])
async def test_what_else_a_client_sends_does_not_postpone_its_end(ends):
    async with serving(stall_timeout_s=0.3) as house:
        _, writer = await house.connect()
        writer.transport.pause_reading()
        for _ in range(8):
            writer.write(b"GET /large HTTP/1.1\r\nHost: r\r\n\r\n")
        if ends:
            writer.write_eof()
        async with asyncio.timeout(PATIENCE_S):
            while house.listener.connections:
                await asyncio.sleep(0.02)
                if not (ends or writer.transport.is_closing()):
                    writer.write(b"\r\n")


async def test_a_little_that_is_not_read_does_not_keep_a_connection_for_ever():
    """Less than what pauses the writing is left when the connection is idle and closed."""
    async with serving(stall_timeout_s=0.1) as house:
        _, writer = await house.connect()
        writer.transport.pause_reading()
        await until(lambda: house.listener.connections == 1)
        (connection,) = house.listener._connections
        while not connection.transport.get_write_buffer_size():
            connection.transport.write(bytes(10_000))
        assert not connection.write_paused
        connection.close()
        await until(lambda: house.listener.connections == 0)


@pytest.mark.parametrize(
    "ahead", [GET * 500, b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\nHost: r\r\n\r\n" + GET * 2000], ids=["many", "long"]
)
async def test_what_is_sent_ahead_of_an_answer_waits(ahead):
    """Little of it is parsed, not much more is read, and all is answered in its turn."""
    async with serving() as house:
        reader, writer = await house.connect()
        writer.write(b"GET /late HTTP/1.1\r\nHost: r\r\n\r\n")
        assert (await answer(reader))[1] == b"late"
        await house.app.hanging.wait()
        writer.write(ahead)
        (connection,) = house.listener._connections
        await until(lambda: len(connection._read_ahead) == len(ahead) or connection._read_paused)
        assert len(connection._read_ahead) <= AHEAD_BYTES + 256 * 1024
        assert len(connection._queue) <= SLICE_BYTES // len(GET) + 1
        house.app.proceed.set()
        for _ in range(ahead.count(b"GET")):
            assert (await answer(reader))[1].startswith(b"/a")
        writer.write(GET)
        assert (await answer(reader))[1] == b"/a "


async def test_a_large_request_right_after_an_answer_is_not_ahead_of_it():
    """The client has the whole answer; that the handler still does something after it is not the client's affair."""
    async with serving() as house:
        reader, writer = await house.connect()
        writer.write(b"GET /late HTTP/1.1\r\nHost: r\r\n\r\n")
        assert (await answer(reader))[1] == b"late"
        await house.app.hanging.wait()
        writer.write(b"POST /a HTTP/1.1\r\nHost: r\r\nContent-Length: 900000\r\n\r\n" + b"x" * 900_000)
        await asyncio.sleep(0.05)
        house.app.proceed.set()
        assert len((await answer(reader))[1]) == 900_003


async def test_a_refusal_is_seen_by_a_client_that_is_still_sending():
    async with serving(header_bytes=4096) as house:
        reader, writer = await house.connect()
        for _ in range(100):
            if not writer.transport.is_closing():
                writer.write(b"x" * 1000)
            await asyncio.sleep(0)
        assert (await rest(reader)).startswith(b"HTTP/1.1 400")


async def test_keep_alive_and_pipelining_keep_the_order():
    async with serving() as house:
        reader, writer = await house.connect()
        post = b"POST /%d HTTP/1.1\r\nHost: r\r\nContent-Length: 1\r\n\r\n%d"
        writer.write(b"".join(post % (i, i) for i in range(8)))
        writer.write(b"GET /8 HTTP/1.1\r\nHost: r\r\n\r\n")
        for i in range(8):
            assert (await answer(reader))[1] == b"/%d %d" % (i, i)
        assert (await answer(reader))[1] == b"/8 "


async def test_what_comes_during_an_answer_waits_for_its_end():
    async with serving() as house:
        reader, writer = await house.connect()
        for path in (b"/stream", b"/b", b"/c"):
            writer.write(b"GET %b HTTP/1.1\r\nHost: r\r\n\r\n" % path)
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S):
            assert b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n" in await reader.readuntil(b"0\r\n\r\n")
        assert (await answer(reader))[1] == b"/b "
        assert (await answer(reader))[1] == b"/c "


async def test_a_pipelining_client_that_leaves_is_noticed():
    async with serving() as house:
        _, writer = await house.connect()
        writer.write(b"GET /hang HTTP/1.1\r\nHost: r\r\n\r\n")
        await house.app.hanging.wait()
        writer.write(GET * 3)
        await asyncio.sleep(0.02)
        writer.transport.abort()
        await until(lambda: house.app.gone == 1)
        assert len(house.app.seen) == 1


async def test_many_requests_in_one_read_are_all_answered():
    async with serving() as house:
        reader, writer = await house.connect()
        post = b"POST /%d HTTP/1.1\r\nHost: r\r\nContent-Length: 1\r\n\r\nx"
        writer.write(b"".join(post % number for number in range(2000)))
        for number in range(2000):
            assert (await answer(reader))[1] == b"/%d x" % number


async def test_no_more_than_a_slice_of_them_waits_as_requests():
    async with serving() as house:
        _, writer = await house.connect()
        writer.write(b"GET /hang HTTP/1.1\r\nHost: r\r\n\r\n" * 200)
        await house.app.hanging.wait()
        (connection,) = house.listener._connections
        assert len(connection._queue) <= SLICE_BYTES // len(GET) + 1
        writer.transport.abort()
        await until(lambda: house.app.gone == 1 and house.listener.connections == 0)
        assert house.app.begun == 1


FAULTS = {
    "no HTTP": b"\x16\x03\x01\x02\x00\r\n\r\n",
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "both lengths": REFUSED["CL and TE"],
    "a bad chunk": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a bad chunk after a good one": CHUNKED + b"3\r\nabc\r\nxyz\r\n",
}


@pytest.mark.parametrize("size", [1, 29, 100_000])
@pytest.mark.parametrize("before", [1, 3, 100])
@pytest.mark.parametrize("fault", FAULTS)
async def test_what_came_before_a_fault_is_answered_in_order_and_then_the_fault_is_refused(fault, before, size):
    data = b"".join(b"GET /%d HTTP/1.1\r\nHost: r\r\n\r\n" % number for number in range(before)) + FAULTS[fault] + GET
    async with serving() as house:
        reader, writer = await house.connect()
        for at in range(0, len(data), size):
            writer.write(data[at : at + size])
            if before < 100:
                await asyncio.sleep(0)
        for number in range(before):
            head, body = await answer(reader)
            assert (head[:13], body) == (b"HTTP/1.1 200 ", b"/%d " % number)
        last = await rest(reader)
        assert last.startswith(b"HTTP/1.1 400 ")
        assert b"connection: close" in last
        assert last.count(b"HTTP/1.1") == 1
        assert [target for _, target, _ in house.app.seen] == [b"/%d" % number for number in range(before)]


async def test_a_client_that_leaves_after_a_fault_is_noticed():
    async with serving() as house:
        _, writer = await house.connect()
        writer.write(b"GET /hang HTTP/1.1\r\nHost: r\r\n\r\n" + FAULTS["no host"])
        await house.app.hanging.wait()
        assert house.app.gone == 0
        writer.write(b"x" * 100_000)
        writer.transport.abort()
        await until(lambda: house.app.gone == 1 and house.listener.connections == 0)


async def test_a_body_of_which_a_part_came_ahead_is_read_when_its_turn_has_come():
    async with serving(body_idle_timeout_s=0.3) as house:
        reader, writer = await house.connect()
        body = b"b" * 300_000
        late = b"GET /late HTTP/1.1\r\nHost: r\r\n\r\n"
        writer.write(late + b"POST /a HTTP/1.1\r\nHost: r\r\nContent-Length: 300000\r\n\r\n" + body + GET)
        assert (await answer(reader))[1] == b"late"
        await house.app.hanging.wait()
        house.app.proceed.set()
        assert (await answer(reader))[1] == b"/a " + body
        assert (await answer(reader))[1] == b"/a "


async def test_expect_100_continue():
    async with serving() as house:
        reader, writer = await house.connect()
        writer.write(b"POST /a HTTP/1.1\r\nHost: r\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        async with asyncio.timeout(PATIENCE_S):
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"abc")
        assert (await answer(reader))[1] == b"/a abc"


async def test_an_early_answer_to_expect_closes_the_connection():
    """Whether the body still comes is the client's choice: what follows could be read as either."""
    async with serving() as house:
        said = await house.talk(b"POST /early HTTP/1.1\r\nHost: r\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 413")
        assert b"connection: close" in said


async def test_an_early_answer_lets_the_client_finish_and_go_on():
    async with serving() as house:
        reader, writer = await house.connect()
        writer.write(b"POST /early HTTP/1.1\r\nHost: r\r\nContent-Length: 300000\r\n\r\n")
        assert (await answer(reader))[1] == b"early"
        writer.write(b"x" * 300000 + GET)
        assert (await answer(reader))[1] == b"/a "


async def test_the_rest_of_an_unwanted_body_is_read_for_a_limited_time():
    async with serving(header_timeout_s=0.1) as house:
        reader, writer = await house.connect()
        writer.write(b"POST /early HTTP/1.1\r\nHost: r\r\nContent-Length: 300000\r\n\r\nabc")
        await answer(reader)
        assert await rest(reader) == b""


async def test_http_1_0_clients_get_no_chunks():
    async with serving() as house:
        said = await house.talk(b"GET /stream HTTP/1.0\r\n\r\n")
        head, body = said.split(b"\r\n\r\n", 1)
        assert body == b"onetwo"
        assert b"transfer-encoding" not in head


async def test_absolute_targets_and_percent_encoding():
    async with serving() as house:
        reader, writer = await house.connect()
        writer.write(b"GET http://h:1/a%2Fb?c=%20 HTTP/1.1\r\nHost: r\r\n\r\n")
        await answer(reader)
        assert house.app.seen[0][1] == b"/a%2Fb?c=%20"


async def test_a_fault_of_ours_is_a_500_and_the_connection_goes_on(caplog):
    async with serving() as house:
        reader, writer = await house.connect()
        writer.write(b"GET /fault HTTP/1.1\r\nHost: r\r\n\r\n" + GET)
        head, body = await answer(reader)
        assert head.startswith(b"HTTP/1.1 500 ")
        assert (b"content-type: text/x-crash" in head, body) == (True, b"crashed")
        assert (await answer(reader))[1] == b"/a "
        assert house.app.crashed == ["/fault"]
    assert "GET /fault failed" in caplog.text


async def test_an_answer_left_unfinished_is_cut():
    async with serving() as house:
        said = await house.talk(b"GET /half HTTP/1.1\r\nHost: r\r\n\r\n")
        assert said.endswith(b"4\r\nhalf\r\n")
        assert house.app.crashed == ["/half"]


async def test_one_task_answers_all_requests_of_a_connection():
    async with serving() as house:
        before = len(asyncio.all_tasks())
        reader, writer = await house.connect()
        for _ in range(3):
            writer.write(GET)
            await answer(reader)
            assert len(asyncio.all_tasks()) == before + 1
        writer.close()
        await until(lambda: len(asyncio.all_tasks()) == before)


# Fuzz: a server in a thread of its own, since each example is synchronous


@contextmanager
def in_a_thread() -> Iterator[tuple[int, list[Any]]]:
    loop = uvloop.new_event_loop()
    errors: list[Any] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    listen = ListenConfig(host="127.0.0.1", port=0, header_bytes=2048, header_timeout_s=0.5, body_idle_timeout_s=0.5)
    listener = HttpListener(configure_server(Echo2(), listen))
    loop.run_until_complete(listener.start())
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield listener.port, errors
    finally:
        asyncio.run_coroutine_threadsafe(listener.stop(0), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Echo2(BareHandler):
    """Answers at the end of the body, whatever was asked."""

    async def answer(self, call: ClientExchange) -> None:
        with suppress(ClientDisconnected), call:
            body = await call.body(1 << 30, self)
            call.answer(200, [], b"%d" % len(body))

    def hold(self, bytes_: int) -> None:
        pass


@pytest.fixture(scope="module")
def fuzzed() -> Iterator[tuple[int, list[Any]]]:
    with in_a_thread() as found:
        yield found


PIECES = st.sampled_from(
    [
        GET,
        CHUNKED,
        b"POST / HTTP/1.1\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"\r\n",
        b"\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        b"abc",
        b"Expect: 100-continue\r\n",
        b"Connection: close\r\n",
        b"X: y\r\n",
        b"HTTP/1.0\r\n",
        b"Upgrade: h2c\r\n",
        b"Connection: upgrade\r\n",
        b"a" * 3000,
        b"HEAD / HTTP/1.1\r\n",
    ]
)


@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(PIECES | st.binary(max_size=40), max_size=8))
@example([b"POST / HTTP/1.1\r\n", b"Expect: 100-continue\r\n", b"Content-Length: 3\r\n", b"\r\n", b"abc", GET])
def test_no_bytes_crash_the_listener(fuzzed, pieces):
    """It answers or closes, and serves the next client."""
    port, errors = fuzzed
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client, suppress(OSError):
        for piece in pieces:
            client.sendall(piece)
        client.shutdown(socket.SHUT_WR)
        while client.recv(65536):
            pass
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as client:
        client.sendall(b"GET / HTTP/1.1\r\nHost: r\r\nConnection: close\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
    assert errors == []


async def test_an_exchange_goes_with_its_request_and_needs_no_collector() -> None:
    async with serving() as house:
        reader, writer = await house.connect()
        gc.collect()
        gc.disable()
        try:
            before = exchanges()
            for _ in range(10):
                writer.write(b"GET /x HTTP/1.1\r\nhost: r\r\n\r\n")
                await answer(reader)
            left = exchanges() - before  # earlier tests may have left some
        finally:
            gc.enable()
        assert left <= 2  # the connection's last one, and one whose task is just ending


def exchanges() -> int:
    return sum(isinstance(thing, ClientExchange) for thing in gc.get_objects())
