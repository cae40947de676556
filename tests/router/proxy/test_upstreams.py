"""The pool and the small questions, against scripted engines."""

from __future__ import annotations

import asyncio
import os
import socket

import pytest

from router.backends.fetch import Fetch, HttpAnswer, NoAnswer
from router.errors import ConfigError
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.headers import NO_HEADERS, ForwardedHeaders
from router.proxy.upstreams import UpstreamExchange, UpstreamRequest, Upstreams, UpstreamUnanswered
from tests.patience import PATIENCE_S

QUESTION = UpstreamRequest("GET", b"/", NO_HEADERS, b"")


@pytest.fixture
async def upstreams():
    made = Upstreams(connect_timeout_s=20.0, keepalive_s=4)
    yield made
    made.close()
    await asyncio.sleep(0)


def url(engine) -> str:
    return f"http://127.0.0.1:{engine.port}"


async def answer_ok(peer):
    while True:
        head, body = await peer.message()
        said = head.split(b"\r\n")[0] + b"|" + body
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(said) + said)


async def test_fetch_gives_the_whole_answer(house, upstreams):
    upstreams.add("e", url(await house.engine(answer_ok)))
    fetch: Fetch = upstreams.fetch
    assert await fetch("e", "/metrics", timeout_s=5) == HttpAnswer(200, b"GET /metrics HTTP/1.1|")
    assert await fetch("e", "/tokenize", b"{}", timeout_s=5) == HttpAnswer(200, b"POST /tokenize HTTP/1.1|{}")
    assert upstreams.idle("e") == 1


async def test_fetch_gives_none_for_silence_death_and_strangers(house, upstreams):
    async def silent(peer):
        await peer.rest()

    async def dies(peer):
        await peer.message()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")

    upstreams.add("silent", url(await house.engine(silent)))
    upstreams.add("dies", url(await house.engine(dies)))
    upstreams.add("closed", "http://127.0.0.1:1")

    async def stops(peer):
        await peer.message()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")
        await peer.rest()

    upstreams.add("stops", url(await house.engine(stops)))
    for instance in ("silent", "stops", "dies", "closed", "unknown"):
        assert await upstreams.fetch(instance, "/", timeout_s=0.05) is None
    assert upstreams.idle("silent") == 0
    reasons = {name: await upstreams.probe(name, "/", timeout_s=0.05) for name in ("silent", "stops", "dies", "closed")}
    late = NoAnswer("no answer within 0.05 s", late=True)
    assert reasons == {
        "silent": late,
        "stops": late,
        "dies": NoAnswer("the engine closed the connection"),
        "closed": NoAnswer("connection refused"),
    }


async def test_a_connection_that_comes_too_late_is_no_late_answer(upstreams, monkeypatch):
    async def never(*args, **options):
        await asyncio.get_running_loop().create_future()

    upstreams.add("e", "http://127.0.0.1:1")
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    assert await upstreams.probe("e", "/", timeout_s=0.05) == NoAnswer("no connection within 0.05 s")


async def test_an_engine_is_not_blamed_for_the_time_in_which_the_router_was_busy(house):
    """Connecting takes several turns of the event loop, each of which takes all the time that an engine has."""
    loop, busy = asyncio.get_running_loop(), True

    def work() -> None:
        end_s = loop.time() + 0.2
        while loop.time() < end_s:
            pass
        if busy:
            loop.call_soon(work)

    upstreams = Upstreams(connect_timeout_s=0.2, keepalive_s=60)
    upstreams.add("e", url(await house.engine(answer_ok)))
    loop.call_soon(work)
    answer = await upstreams.send("e", QUESTION, first_byte_s=60, idle_s=60)
    busy = False
    assert not isinstance(answer, UpstreamUnanswered)
    with answer:
        assert answer.status == 200
    upstreams.close()


async def test_fetch_is_bounded(house, upstreams):
    async def endless(peer):
        await peer.message()
        peer.send(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            peer.send(b"x" * 65536)
            await peer.writer.drain()

    upstreams.add("e", url(await house.engine(endless)))
    assert await upstreams.fetch("e", "/", timeout_s=5) == HttpAnswer(200, b"", oversized=True)


async def test_the_instances_key_replaces_the_clients(house, upstreams):
    heads = []

    async def script(peer):
        heads.append((await peer.message())[0])
        peer.send(b"HTTP/1.1 204 No\r\n\r\n")

    upstreams.add("e", url(await house.engine(script)), api_key="mine")
    headers = ForwardedHeaders(b"", b"authorization: Bearer theirs\r\n")
    answer = await upstreams.send("e", UpstreamRequest("GET", b"/", headers, b"", 2), first_byte_s=5, idle_s=5)
    assert isinstance(answer, UpstreamExchange)
    with answer:
        assert await answer.read() == b""
    assert b"authorization: Bearer mine\r\n" in heads[0]
    assert b"theirs" not in heads[0]
    assert b"x-data-parallel-rank: 2\r\n" in heads[0]


async def test_the_last_used_connection_is_used_first(house, upstreams):
    engine = await house.engine(answer_ok)
    upstreams.add("e", url(engine))
    await asyncio.gather(*(upstreams.fetch("e", "/", timeout_s=5) for _ in range(3)))
    assert (engine.connections, upstreams.idle("e")) == (3, 3)
    for _ in range(5):
        await upstreams.fetch("e", "/", timeout_s=5)
    assert engine.connections == 3


async def test_a_connection_whose_close_is_still_unread_is_not_used(house, upstreams, monkeypatch):
    """Else the close would be read after the request went out: with some delay, a death of the engine."""
    monkeypatch.setattr("router.proxy.upstreams.CROSSED_WITHIN_S", -1.0)
    sockets: list[socket.socket] = []

    async def script(peer):
        sockets.append(peer.writer.get_extra_info("socket"))
        await answer_ok(peer)

    upstreams.add("e", url(await house.engine(script)))
    assert await upstreams.fetch("e", "/first", timeout_s=5) == HttpAnswer(200, b"GET /first HTTP/1.1|")
    with socket.socket(fileno=os.dup(sockets[0].fileno())) as same:
        same.shutdown(socket.SHUT_WR)
    assert await upstreams.fetch("e", "/second", timeout_s=5) == HttpAnswer(200, b"GET /second HTTP/1.1|")
    assert len(sockets) == 2


HEAD = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"content-length: 2\r\n\r\nhi"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"".join(b"x-%d: %b\r\n" % (n, b"v" * 1000) for n in range(70)) + LENGTH,
        HEAD + b"x: " + b"v" * 70_000 + b"\r\n" + LENGTH,
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" * 2000 + HEAD + LENGTH,
        CHUNKED + b"2;" + b"e" * 70_000 + b"\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"2\r\nhi\r\n0\r\n" + b"".join(b"x-%d: %b\r\n" % (n, b"v" * 1000) for n in range(70)) + b"\r\n",
        CHUNKED + b"0" * 70_000 + b"2\r\nhi\r\n0\r\n\r\n",
        CHUNKED + b"fffffffffffffffff\r\nhi",
        HEAD + b"content-length: 99999999999999999999999\r\n\r\nhi",
        b"HTTP/1.1 099 Low\r\n" + LENGTH,
        b"HTTP/1.1 600 High\r\n" + LENGTH,
        b"HTTP/1.1 1000 Long\r\n" + LENGTH,
    ],
    ids=["head", "line", "hints", "extension", "trailers", "size of zeros", "size", "length", "99", "600", "1000"],
)
async def test_what_is_no_answer_for_its_size_ends_the_exchange(house, upstreams, answer):
    async def script(peer):
        await peer.message()
        for start in range(0, len(answer), 4096):  # so that no read has it all
            peer.send(answer[start : start + 4096])
            await peer.writer.drain()
            await asyncio.sleep(0)
        await peer.rest()

    upstreams.add("e", url(await house.engine(script)))
    assert await upstreams.fetch("e", "/", timeout_s=5) is None
    assert upstreams.idle("e") == 0


async def test_many_small_chunks_are_an_answer(house, upstreams):
    async def script(peer):
        await peer.message()
        peer.send(CHUNKED + b"1;ext=1\r\nx\r\n" * 100_000 + b"0\r\n\r\n")

    upstreams.add("e", url(await house.engine(script)))
    assert await upstreams.fetch("e", "/", timeout_s=5) == HttpAnswer(200, b"x" * 100_000)


async def test_a_head_that_drips_ends_with_the_time_for_the_first_byte(house, upstreams):
    async def script(peer):
        await peer.message()
        peer.send(HEAD)
        while True:
            peer.send(b"x: y\r\n")
            await asyncio.sleep(0.01)

    upstreams.add("e", url(await house.engine(script)))
    assert await upstreams.send("e", QUESTION, first_byte_s=0.1, idle_s=5) == UpstreamUnanswered(
        "late", ExchangeFailure.LATE.value
    )


async def test_a_removed_instance_keeps_no_connection(house, upstreams, eventually):
    closed = asyncio.Event()

    async def script(peer):
        await peer.message()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
        await proceed.wait()
        peer.send(b"cd")
        await peer.rest()
        closed.set()

    proceed = asyncio.Event()
    upstreams.add("e", url(await house.engine(script)))
    answer = await upstreams.send("e", QUESTION, first_byte_s=5, idle_s=5)
    with answer:
        upstreams.remove("e")
        proceed.set()
        assert await answer.read_all(100) == b"abcd"  # what ran ended undisturbed
    async with asyncio.timeout(PATIENCE_S):
        await closed.wait()
    assert isinstance(await upstreams.send("e", QUESTION, first_byte_s=5, idle_s=5), UpstreamUnanswered)


async def test_an_answer_not_read_to_its_end_closes_the_connection(house, upstreams):
    closed = asyncio.Event()

    async def script(peer):
        await peer.message()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nab")
        await peer.rest()
        closed.set()

    upstreams.add("e", url(await house.engine(script)))
    with await upstreams.send("e", QUESTION, first_byte_s=5, idle_s=5) as answer:
        assert await answer.read() == b"ab"
        assert not answer.drained
    async with asyncio.timeout(PATIENCE_S):
        await closed.wait()
    assert upstreams.idle("e") == 0


async def test_connect_timeout(upstreams):
    """A listening socket whose queue is full answers no handshake."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for filler in (first, second):
            filler.setblocking(False)
            filler.connect_ex(full.getsockname())
        made = Upstreams(connect_timeout_s=0.1, keepalive_s=1)
        made.add("e", f"http://127.0.0.1:{full.getsockname()[1]}")
        answer = await made.send("e", QUESTION, first_byte_s=0.3, idle_s=0.3)
        assert isinstance(answer, UpstreamUnanswered)
        assert answer.reason in ("connect", "late")  # some kernels accept one more
        made.close()


async def test_ipv6(house, upstreams):
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        engine = await house.engine(answer_ok, host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    upstreams.add("e", f"http://[::1]:{engine.port}")
    assert (await upstreams.fetch("e", "/", timeout_s=5)).status == 200


async def test_a_name_that_does_not_exist(upstreams):
    upstreams.add("e", "http://" + "a" * 70 + ":1")
    answer = await upstreams.send("e", QUESTION, first_byte_s=1, idle_s=1)
    assert answer.reason == "connect"


def test_a_ca_file_that_cannot_be_read(tmp_path):
    with pytest.raises(ConfigError, match="ca_file"):
        Upstreams(connect_timeout_s=1, keepalive_s=1).add("e", "https://h", ca_file=str(tmp_path / "none.pem"))


def test_request_head():
    request = UpstreamRequest("POST", b"/a?b", ForwardedHeaders(b"a: b\r\n", b""), b"1234567", 3)
    head = request.render_head(b"h:1", b"authorization: Bearer k\r\n")
    assert head == (
        b"POST /a?b HTTP/1.1\r\nhost: h:1\r\nauthorization: Bearer k\r\nx-data-parallel-rank: 3\r\na: b\r\n"
        b"content-length: 7\r\n\r\n"
    )


def test_a_get_without_a_body_has_no_length_and_an_empty_post_has_one():
    assert b"content-length" not in QUESTION.render_head(b"h", b"")
    post = UpstreamRequest("POST", b"/", NO_HEADERS, b"")
    assert b"content-length: 0\r\n" in post.render_head(b"h", b"")
