"""The whole data path over real sockets: bytes in, bytes out, and everything that may go wrong between."""

from __future__ import annotations

import asyncio
import json
import resource
from http import HTTPStatus

import pytest

from router.proxy.engine_connection import ExchangeFailure
from router.proxy.relay import HELD_BYTES, RelayBroken, RelayDeadline, RelayFinished, RelayNotStarted
from tests.patience import PATIENCE_S

POST = b"POST /v1/completions?a=b%20c HTTP/1.1\r\nHost: router\r\nContent-Length: 2\r\n\r\n{}"
OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def answer_ok(peer):
    while True:
        await peer.message()
        peer.send(OK)


async def silent(peer):
    await peer.message()
    await peer.rest()


async def test_the_request_reaches_the_engine_as_it_came(house):
    seen = []

    async def script(peer):
        seen.append(await peer.message())
        peer.send(OK)

    engine = await house.engine(script)
    front = await house.front(engine)
    client = await house.client(front.port)
    client.send(
        b"POST /v1/x%2Fy?q=1&q=2 HTTP/1.1\r\nHost: router\r\nX-One: 1\r\nX-One: 2\r\nAccept-Encoding: gzip\r\n"
        b"X-Vllm-Priority: 9\r\nX-Warmroute-Target: me\r\nAuthorization: Bearer k\r\n"
        b"Content-Length: 4\r\n\r\n\x00\xffab"
    )
    await client.message()
    head, body = seen[0]
    assert body == b"\x00\xffab"
    assert head.split(b"\r\n") == [
        b"POST /v1/x%2Fy?q=1&q=2 HTTP/1.1",
        b"host: 127.0.0.1:%d" % engine.port,
        b"authorization: Bearer k",
        b"x-one: 1",
        b"x-one: 2",
        b"x-request-id: rec-1",
        b"content-length: 4",
        b"",
        b"",
    ]


async def test_the_answer_comes_back_as_it_was(house):
    async def script(peer):
        await peer.message()
        peer.send(
            b"HTTP/1.1 422 Unprocessable\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-Warmroute-Record: forged\r\n"
            b"Connection: x-hop\r\nX-Hop: 1\r\nKeep-Alive: timeout=5\r\nContent-Length: 3\r\n\r\n\x00\xff!"
        )

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    head, body = await client.message()
    assert body == b"\x00\xff!"
    assert head.split(b"\r\n") == [
        b"HTTP/1.1 422 " + HTTPStatus(422).phrase.encode(),  # another word since Python 3.13
        b"set-cookie: a=1",
        b"set-cookie: b=2",
        b"content-length: 3",
        b"x-warmroute-target: e/0",
        b"x-warmroute-record: rec-1",
        b"",
        b"",
    ]
    assert await front.end() == RelayFinished(422, pytest.approx(0, abs=1))


@pytest.mark.parametrize(
    ("coding", "compressed"), [(b"gzip", b"gzip"), (b"GZip, br", b"gzip, br"), (b" identity, zstd", b"zstd")]
)
async def test_a_compressed_answer_passes_unread(house, coding, compressed):
    """Even a stream whose last chunk is to be hidden: what is inside cannot be told."""

    async def script(peer):
        await peer.message()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: " + coding + b"\r\n")
        peer.send(b"content-length: 8\r\n\r\ngz usage")

    front = await house.front(await house.engine(script), hides=b"usage")
    client = await house.client(front.port)
    client.send(POST)
    head, body = await client.message()
    assert body == b"gz usage"
    assert b"content-encoding: " + coding.strip() in head
    (watch,) = front.watches
    assert watch.encodings == [compressed]


async def test_a_compressed_stream_that_breaks_gets_no_event_added(house):
    async def script(peer):
        await peer.message()
        peer.send(STREAM.replace(b"\r\n\r\n", b"\r\ncontent-encoding: gzip\r\n\r\n") + chunk(b"gz"))

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    assert (await client.rest()).endswith(chunk(b"gz"))


async def test_chunks_arrive_before_the_next_one_is_sent(house):
    proceed = asyncio.Event()

    async def script(peer):
        await peer.message()
        peer.send(STREAM)
        for i in range(3):
            peer.send(chunk(b"data: %d\n\n" % i))
            await proceed.wait()
            proceed.clear()
        peer.send(b"0\r\n\r\n")

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    assert b"transfer-encoding: chunked" in await client.until(b"\r\n\r\n")
    for i in range(3):
        expected = chunk(b"data: %d\n\n" % i)
        assert await client.exactly(len(expected)) == expected
        proceed.set()
    assert await client.exactly(5) == b"0\r\n\r\n"
    assert front.watches[0].statuses == [200]
    assert b"".join(front.watches[0].seen) == b"data: 0\n\ndata: 1\n\ndata: 2\n\n"


async def test_what_the_watch_hides_is_not_sent_and_no_length_is_promised(house):
    async def script(peer):
        await peer.message()
        peer.send(STREAM + chunk(b"data: 1\n\n") + chunk(b"data: usage\n\n") + b"0\r\n\r\n")

    front = await house.front(await house.engine(script), hides=b"data: usage\n\n")
    client = await house.client(front.port)
    client.send(POST)
    _, body = await client.message()
    assert b"data: 1\n\n" in body
    assert b"usage" not in body


async def test_a_large_body_and_answer_pass_whole(house):
    sent = bytes(range(256)) * 16384  # 4 MiB

    async def script(peer):
        _, body = await peer.message()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body))
        peer.send(body[::-1])

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(b"POST / HTTP/1.1\r\nHost: r\r\nContent-Length: %d\r\n\r\n" % len(sent))
    client.send(sent)
    _, body = await client.message()
    assert body == sent[::-1]


async def test_over_the_bounds_nothing_reaches_an_engine(house, eventually):
    engine = await house.engine(silent)
    front = await house.front(engine, concurrent=1, body_bytes=100, body_budget_bytes=150)
    client = await house.client(front.port)
    client.send(b"POST / HTTP/1.1\r\nHost: r\r\nContent-Length: 101\r\n\r\n")
    assert (await client.message())[0].startswith(b"HTTP/1.1 413")
    running, waiting = await house.client(front.port), await house.client(front.port)
    running.send(POST)
    await eventually(lambda: engine.connections == 1)
    waiting.send(POST)
    assert (await waiting.message())[0].startswith(b"HTTP/1.1 429")
    running.reset()
    await eventually(lambda: front.limiter.in_flight == 0)
    assert (engine.connections, front.limiter.held_bytes) == (1, 0)


async def test_keep_alive_connections_are_reused_on_both_sides(house):
    engine = await house.engine(answer_ok)
    front = await house.front(engine)
    client = await house.client(front.port)
    for _ in range(5):
        client.send(POST)
        assert (await client.message())[1] == b"{}"
    assert engine.connections == 1
    assert front.upstreams.idle("e") == 1


async def test_a_client_that_leaves_closes_the_engines_connection(house, eventually):
    closed = asyncio.Event()

    async def script(peer):
        await peer.message()
        await peer.rest()
        closed.set()

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    await eventually(lambda: len(front.watches) == 1)
    client.reset()
    async with asyncio.timeout(PATIENCE_S):
        await closed.wait()
    assert await front.end() == "gone"
    assert (front.limiter.in_flight, front.limiter.held_bytes) == (0, 0)


async def test_a_client_that_leaves_mid_stream_closes_the_engines_connection(house):
    closed = asyncio.Event()

    async def script(peer):
        await peer.message()
        peer.send(STREAM + chunk(b"data: 1\n\n"))
        await peer.rest()
        closed.set()

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    await client.until(b"data: 1\n\n")
    client.close()
    async with asyncio.timeout(PATIENCE_S):
        await closed.wait()
    assert await front.end() == "gone"


async def close_at_once(peer):
    await peer.message()


async def test_a_stale_reused_connection_is_retried_silently(house, eventually):
    async def one_answer_then_close_on_the_next(peer):
        await peer.message()
        peer.send(OK)
        await peer.message()

    engine = await house.engine(one_answer_then_close_on_the_next, answer_ok)
    front = await house.front(engine)
    client = await house.client(front.port)
    for _ in range(2):
        client.send(POST)
        head, _ = await client.message()
        assert head.startswith(b"HTTP/1.1 200")
    assert engine.connections == 2


async def test_a_fresh_connection_that_dies_is_not_retried(house):
    engine = await house.engine(close_at_once)
    front = await house.front(engine)
    client = await house.client(front.port)
    client.send(POST)
    await client.message()
    end = await front.end()
    assert isinstance(end, RelayNotStarted)
    assert end.reason == "died"
    assert engine.connections == 1


async def test_a_reused_connection_with_half_an_answer_is_not_retried(house):
    async def script(peer):
        await peer.message()
        peer.send(OK)
        await peer.message()
        peer.send(b"HTTP/1.1 20")

    engine = await house.engine(script)
    front = await house.front(engine)
    client = await house.client(front.port)
    for _ in range(2):
        client.send(POST)
        await client.message()
    assert isinstance(await front.end(), RelayFinished)
    assert (await front.end()).reason == "died"
    assert engine.connections == 1


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-le", id="half a head"),
        pytest.param(STREAM, id="the head of a stream"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n", id="the head of a body"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\n", id="an interim answer"),
        pytest.param(b"this is not HTTP\r\n\r\n", id="nonsense"),
        pytest.param(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n", id="an upgrade"),
        pytest.param(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}", id="two lengths"),
        pytest.param(
            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            id="length and chunks",
        ),
        pytest.param(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, identity\r\n\r\n{}", id="unknown coding"),
        pytest.param(b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\n{}", id="gzip coding"),
    ],
)
async def test_before_the_first_body_byte_nothing_has_started(house, sent):
    async def script(peer):
        await peer.message()
        peer.send(sent)

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    head, body = await client.message()
    assert (head[:12], body) == (b"HTTP/1.1 502", b"RelayNotStarted")
    end = await front.end()
    assert isinstance(end, RelayNotStarted)
    assert end.reason == "died"


async def test_an_engine_that_cannot_be_reached(house):
    engine = await house.engine(silent)
    front = await house.front(url="http://127.0.0.1:1")
    client = await house.client(front.port)
    client.send(POST)
    await client.message()
    end = await front.end()
    assert end.reason == "connect"
    assert engine.connections == 0


async def test_an_engine_that_was_removed(house):
    front = await house.front()
    client = await house.client(front.port)
    client.send(POST)
    await client.message()
    assert (await front.end()).reason == "connect"


async def test_a_503_is_swallowed_and_kept(house):
    async def script(peer):
        await peer.message()
        peer.send(b"HTTP/1.1 503 Full\r\nretry-after: 3\r\ncontent-length: 4\r\n\r\nfull")
        await peer.message()

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    await client.message()
    end = await front.end()
    assert end.reason == "busy"
    assert (end.refusal.status, end.refusal.body) == (503, b"full")
    assert (b"retry-after", b"3") in end.refusal.headers
    assert all(name != b"content-length" for name, _ in end.refusal.headers)
    assert front.upstreams.idle("e") == 1


async def test_a_broken_event_stream_ends_with_an_error_event(house):
    async def script(peer):
        await peer.message()
        peer.send(STREAM + chunk(b"data: 1\n\n"))

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    _, body = await client.message()
    lines = [line for line in body.split(b"\r\n") if line.startswith(b"data: ")]
    assert lines[0] == b"data: 1\n\n"
    assert json.loads(lines[1][6:])["error"]["type"] == "upstream_error"
    assert (await front.end())[:2] == (200, ExchangeFailure.CLOSED)
    client.send(POST)  # the connection is sound
    assert (await client.until(b"\r\n")).startswith(b"HTTP/1.1 200")


async def test_a_half_sent_event_is_closed_before_the_error(house):
    async def script(peer):
        await peer.message()
        peer.send(STREAM + chunk(b'data: {"a'))

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    _, body = await client.message()
    assert b'\n\ndata: {"error":' in body


JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json; charset=utf-8\r\ncontent-length: %d\r\n\r\n"


@pytest.mark.parametrize("beginning", [b"", b"{", b"x" * 200_000])
async def test_a_json_answer_that_breaks_off_was_not_begun_for_the_client(house, beginning):
    async def script(peer):
        await peer.message()
        peer.send(JSON % 300_000 + beginning)

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    end = await front.end()
    assert (end.reason, end.detail) == ("died", ExchangeFailure.CLOSED.value)
    assert front.watches[0].statuses == []


async def test_lines_of_json_pass_as_they_come(house):
    proceed = asyncio.Event()

    async def script(peer):
        await peer.message()
        peer.send(STREAM.replace(b"text/event-stream", b"application/jsonl") + chunk(b"{}\n"))
        await proceed.wait()
        peer.send(b"0\r\n\r\n")

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    await client.until(chunk(b"{}\n"))
    proceed.set()
    assert await front.end() == RelayFinished(200, pytest.approx(0, abs=1))


@pytest.mark.parametrize("size", [2, 300_000, HELD_BYTES + 300_000])
async def test_a_json_answer_in_parts_comes_whole(house, size):
    async def script(peer):
        await peer.message()
        peer.send(JSON % size + b"x")
        peer.send(b"x" * (size - 1))

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    _, body = await client.message()
    assert body == b"x" * size
    assert await front.end() == RelayFinished(200, pytest.approx(0, abs=1))
    assert b"".join(front.watches[0].seen) == body


async def test_a_json_answer_that_is_too_large_to_be_held_breaks_for_the_client_too(house):
    async def script(peer):
        await peer.message()
        peer.send(JSON % (HELD_BYTES * 3) + b"x" * (HELD_BYTES * 2))

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    assert len(await client.rest()) > HELD_BYTES
    assert isinstance(await front.end(), RelayBroken)


async def test_a_broken_body_cuts_the_connection(house):
    async def script(peer):
        await peer.message()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc")

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    answer = await client.rest()
    assert answer.endswith(b"\r\n\r\nabc")
    assert isinstance(await front.end(), RelayBroken)


async def test_a_body_until_the_connection_closes_becomes_chunked(house):
    async def script(peer):
        await peer.message()
        peer.send(b"HTTP/1.0 200 OK\r\n\r\nabc")

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(POST)
    head, body = await client.message()
    assert b"transfer-encoding: chunked" in head
    assert body == b"3\r\nabc\r\n0\r\n\r\n"
    assert isinstance(await front.end(), RelayFinished)
    assert front.upstreams.idle("e") == 0


@pytest.mark.parametrize("status", [204, 304])
async def test_answers_without_a_body(house, status):
    async def script(peer):
        while True:
            await peer.message()
            peer.send(b"HTTP/1.1 %d Nothing\r\nx-a: b\r\n\r\n" % status)

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    for _ in range(2):
        client.send(POST)
        head = await client.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 %d" % status)
        assert b"transfer-encoding" not in head
    assert front.upstreams.idle("e") == 1


async def test_interim_answers_are_skipped(house):
    async def script(peer):
        while True:
            await peer.message()
            peer.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nx-hint: 1\r\n\r\n" + OK)

    engine = await house.engine(script)
    front = await house.front(engine)
    client = await house.client(front.port)
    for _ in range(2):
        client.send(POST)
        head, body = await client.message()
        assert (body, b"x-hint" in head) == (b"{}", False)
    assert engine.connections == 1


async def test_head_requests(house):
    async def script(peer):
        await peer.message()
        peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n")
        await peer.rest()

    front = await house.front(await house.engine(script))
    client = await house.client(front.port)
    client.send(b"HEAD / HTTP/1.1\r\nHost: r\r\n\r\n")
    head = await client.until(b"\r\n\r\n")
    assert b"content-length: 10" in head
    assert isinstance(await front.end(), RelayFinished)


async def test_bytes_that_answer_no_request_end_the_engines_connection(house, eventually):
    async def script(peer):
        await peer.message()
        peer.send(OK)
        await proceed.wait()
        peer.send(OK)  # would be the answer to the next client's request
        await peer.rest()

    proceed = asyncio.Event()
    engine = await house.engine(script, answer_ok)
    front = await house.front(engine)
    client = await house.client(front.port)
    client.send(POST)
    await client.message()
    await eventually(lambda: front.upstreams.idle("e") == 1)
    proceed.set()
    await eventually(lambda: front.upstreams.idle("e") == 0)
    client.send(POST)
    await client.message()
    assert engine.connections == 2


async def test_a_second_answer_in_the_same_read_is_never_used(house):
    async def script(peer):
        await peer.message()
        peer.send(OK + b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison")
        await peer.rest()

    engine = await house.engine(script, answer_ok)
    front = await house.front(engine)
    client = await house.client(front.port)
    for _ in range(2):
        client.send(POST)
        assert (await client.message())[1] == b"{}"
    assert engine.connections == 2


async def test_an_engine_silent_before_the_first_byte(house):
    front = await house.front(await house.engine(silent), first_byte_timeout_s=0.05)
    client = await house.client(front.port)
    client.send(POST)
    assert (await client.message())[1] == b"RelayDeadline"
    assert isinstance(await front.end(), RelayDeadline)


async def test_an_engine_silent_mid_stream(house):
    async def script(peer):
        await peer.message()
        peer.send(STREAM + chunk(b"data: 1\n\n"))
        await peer.rest()

    front = await house.front(await house.engine(script), idle_timeout_s=0.05)
    client = await house.client(front.port)
    client.send(POST)
    _, body = await client.message()
    assert b"silent for too long" in body
    assert (await front.end())[:2] == (200, ExchangeFailure.LATE)


async def test_idle_connections_age_out(house, eventually):
    front = await house.front(await house.engine(answer_ok), keepalive_s=0.05)
    client = await house.client(front.port)
    client.send(POST)
    await client.message()
    await eventually(lambda: front.upstreams.idle("e") == 0)


async def test_a_reader_that_stops_stops_its_engine(house, eventually):
    """200 MB are offered; what leaves the engine before it is stopped is in socket buffers and under 1 MB of ours."""
    block = b"x" * 65536
    sent = 0

    async def script(peer):
        nonlocal sent
        await peer.message()
        peer.send(STREAM)
        while sent < 200_000_000:
            peer.send(chunk(block))
            sent += len(block)
            await peer.writer.drain()
        peer.send(b"0\r\n\r\n")

    front = await house.front(await house.engine(script))
    client = await house.client(front.port, limit=65536)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    client.send(POST)
    last = -1
    while last != sent or not sent:  # until the engine has come to a stand
        last = sent
        await asyncio.sleep(0.1)
    assert sent < 20_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 * 1024  # KiB
    got = 0
    async with asyncio.timeout(PATIENCE_S):
        while data := await client.reader.read(1 << 20):
            got += len(data)
            if data.endswith(b"0\r\n\r\n"):
                break
    assert got > 200_000_000
    assert isinstance(await front.end(), RelayFinished)


async def test_a_reader_that_never_reads_is_cut(house):
    async def script(peer):
        await peer.message()
        peer.send(STREAM)
        while True:
            peer.send(chunk(b"x" * 65536))
            await peer.writer.drain()

    front = await house.front(await house.engine(script), stall_timeout_s=0.1)
    client = await house.client(front.port, limit=1024)
    client.send(POST)
    assert await front.end() == "gone"


async def test_tls_on_both_sides(house, certificate):
    engine = await house.engine(answer_ok, tls=certificate.server_context())
    front = await house.front(
        url=f"https://127.0.0.1:{engine.port}", ca_file=certificate.cert_file, certificate=certificate
    )
    client = await house.client(front.port, ssl=certificate.client_context())
    for _ in range(2):
        client.send(POST)
        assert (await client.message())[1] == b"{}"
    assert engine.connections == 1


async def test_an_engine_with_an_unknown_certificate_is_not_reached(house, certificate):
    engine = await house.engine(answer_ok, tls=certificate.server_context())
    front = await house.front(url=f"https://127.0.0.1:{engine.port}")
    client = await house.client(front.port)
    client.send(POST)
    await client.message()
    end = await front.end()
    assert end.reason == "connect"
    assert "certificate" in end.detail.lower()
