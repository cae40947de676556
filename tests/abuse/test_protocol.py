"""Requests that are not what they should be, connections that speak something else, and an end in the middle of it."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.abuse.raw import BENIGN, CHAT, HEALTH, MB, RawClient, chat, cut_off, dial, dialled, post
from tests.e2e.conftest import MODEL
from tests.fakes.engines import engine, eventually

WEBSOCKET = (
    b"GET /v1/realtime HTTP/1.1\r\nhost: r\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
H2C = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and an empty SETTINGS frame

OTHER_PROTOCOLS = {
    "HTTP/2 with prior knowledge": (PREFACE, 505),
    "CONNECT": (b"CONNECT example.com:443 HTTP/1.1\r\nhost: example.com:443\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500), 400),
    "SSH": (b"SSH-2.0-OpenSSH_9.6\r\n", 400),
    "Redis": (b"*1\r\n$4\r\nPING\r\n", 400),
    "SMTP": (b"EHLO example.com\r\n", 400),
    "no host": (HEALTH.replace(b"host: r\r\n", b""), 400),
    "two hosts": (HEALTH.replace(b"host: r\r\n", b"host: r\r\nhost: s\r\n"), 400),
    "a host that is none": (HEALTH.replace(b"host: r\r\n", b"host: r/../s\r\n"), 400),
    "101 headers": (HEALTH.replace(b"host: r\r\n", b"host: r\r\n" + b"a:\r\n" * 100), 431),
}


OFFERS = {
    "a websocket": (WEBSOCKET, 404),
    "a websocket to a served path": (WEBSOCKET.replace(b"/v1/realtime", b"/v1/chat/completions"), 426),
    "a websocket to /health": (WEBSOCKET.replace(b"/v1/realtime", b"/health"), 200),
    "h2c": (HEALTH.replace(b"\r\n\r\n", b"\r\n" + H2C + b"\r\n"), 200),
    "h2c with a body": (post(len(CHAT), CHAT, H2C[:-2]), 200),
}


async def test_offers_of_other_protocols_are_ignored(router) -> None:
    """The answer is one of HTTP/1.1, and the connection goes on."""
    async with engine() as fake, router([fake]) as r:
        for what, (request, status) in OFFERS.items():
            async with dialled(r.url, 1) as (client,):
                client.send(request)
                assert (await client.answer())[0] == status, what
                client.send(HEALTH)
                assert (await client.answer())[0] == 200, what
        (seen,) = fake.seen("/v1/chat/completions")
        assert not {"upgrade", "http2-settings"} & {name.lower() for name in seen.headers}


async def test_what_is_not_spoken_here_gets_a_clear_answer_and_the_end(router) -> None:
    """In one piece and byte by byte; and nothing of it reaches an engine."""
    async with engine() as fake, router([fake]) as r:
        for what, (request, status) in OTHER_PROTOCOLS.items():
            for pieces in ([request], [request[i : i + 1] for i in range(len(request))]):
                async with dialled(r.url, 1) as (client,):
                    for piece in pieces:
                        client.send(piece)
                        await asyncio.sleep(0)
                    said = await client.rest()
                assert said.startswith(b"HTTP/1.1 %d " % status), (what, said)
                assert b"connection: close" in said, what
                assert said.count(b"HTTP/1.1 ") == 1, what
                error = json.loads(said.partition(b"\r\n\r\n")[2])["error"]
                assert error["type"] == "invalid_request_error", what
                assert len(error["message"]) < 100, what
        assert fake.seen("/v1/chat/completions") == []
        assert await chat(r.url) == 200


# what a connection takes of memory

SHORT_HEADERS = b"".join(b"%02d:\r\n" % n for n in range(99))
MEMORY = {
    "a head that does not end": b"GET / HTTP/1.1\r\nhost: r\r\nx: " + b"x" * 64_000,
    "short headers": b"GET / HTTP/1.1\r\nhost: r\r\n" + SHORT_HEADERS,
    "a body that nobody reads": HEALTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 250000\r\n\r\n") + b"x" * 249_999,
    "the end of a body that nobody reads": HEALTH.replace(b"\r\n\r\n", b"\r\ncontent-length: 250000\r\n\r\n")
    + b"x" * 250_000,
    "a body after a refusal": post(100 * MB, b"x" * 250_000),
    "trailers": HEALTH.replace(b"\r\n\r\n", b"\r\ntransfer-encoding: chunked\r\n\r\n")
    + b"c350\r\n%b\r\n0\r\n" % (b"x" * 50_000)
    + b"a:\r\n" * 50_000,
    "requests ahead": HEALTH + (b"GET /v1/models HTTP/1.1\r\nhost: r\r\n" + SHORT_HEADERS + b"\r\n") * 16,
}


async def test_a_connection_takes_little_memory(router_process, fleet_config, measured) -> None:
    async with engine() as fake, router_process(fleet_config([fake])) as r, dialled(r.url, 1, BENIGN) as (warm,):
        for what, request in MEMORY.items():
            for _ in range(20):
                warm.send(HEALTH)
                await warm.answer()
            before = most = r.rss_bytes
            async with dialled(r.url, 100) as clients:
                for client in clients:
                    client.send(request)
                for _ in range(20):
                    warm.send(HEALTH)
                    await warm.answer()
                    most = max(most, r.rss_bytes)
                    await asyncio.sleep(0.01)
            measured(f"memory of a connection with {what}", (most - before) / 100 / 1024, 160, "KiB")


# the end


class Trickle:
    """An engine whose streams have a chunk per 200 ms: `chunks` of them, or no end for prompts that begin with 0."""

    def __init__(self, chunks: int) -> None:
        self.chunks = chunks
        self.running = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                if head.startswith(b"POST"):
                    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                    await self._stream(writer, json.loads(await reader.readexactly(length)))
                else:
                    body = json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model"}]}).encode()
                    body = body if b"/v1/models" in head else b""
                    status = b"404 Not Found" if b"/kv_event_sources" in head else b"200 OK"
                    writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        writer.close()

    async def _stream(self, writer: asyncio.StreamWriter, request: dict[str, list[int]]) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        writer.write(head + b"9\r\ndata: 0\n\n\r\n")
        self.running += 1
        try:
            left = self.chunks if request["prompt"][0] else 1 << 30
            while left := left - 1:
                await asyncio.sleep(0.2)
                writer.write(b"9\r\ndata: 1\n\n\r\n")
                await writer.drain()
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
        finally:
            self.running -= 1


@asynccontextmanager
async def trickle(chunks: int) -> AsyncIterator[Trickle]:
    running = Trickle(chunks)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0, backlog=2048)
    running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield running
    finally:
        server.close()


@pytest.mark.abuse
async def test_sigterm_while_a_thousand_streams_run(router_process, fleet_config, measured) -> None:
    """Half of them end within the grace time, half never; a tenth of the clients speak HTTP/1.0 (no chunks), and as
    many do not read. All that can be whole is, the rest ends with an error event or a cut, and in time.
    """
    grace_s, loop = 8.0, asyncio.get_running_loop()

    async def read_all(client: RawClient, old: bool) -> str:
        said, end = b"", "cut"
        try:
            while data := await client.reader.read(65536):
                said += data
        except ConnectionError:
            pass
        else:
            end = "ended" if old and b'"router_stopped"' not in said else "cut"
        if said.endswith(b"data: [DONE]\n\n" if old else b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            end = "whole"
        return end

    async with trickle(20) as slow:
        config = fleet_config([slow.url], tokenizers={}, limits={"grace_s": grace_s})
        async with router_process(config) as r, cut_off() as clients:
            reading = []
            for number in range(1000):
                client, old = await dial(r.url), number % 10 == 0
                body = json.dumps({"model": MODEL, "prompt": [(number // 10) % 2, 1], "stream": True}).encode()
                version = b"1.0" if old else b"1.1"
                head = b"POST /v1/completions HTTP/%b\r\nhost: r\r\ncontent-type: application/json\r\n" % version
                client.send(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))
                clients.append(client)
                if number % 10 == 1:
                    client.stop_reading()
                else:
                    reading.append(asyncio.create_task(read_all(client, old)))
            await eventually(lambda: slow.running == 1000, 20)
            started = loop.time()
            r.process.send_signal(signal.SIGTERM)
            code = await asyncio.wait_for(r.process.wait(), 60)
            measured("a router with 1,000 streams has ended after", loop.time() - started, grace_s + 3, "s")
            ends = await asyncio.gather(*reading)
            measured("streams that ended neither whole nor visibly cut", ends.count("ended"), 0, "of 900")
            measured("streams that were cut though they had an end", 450 - ends.count("whole"), 0, "of 450")
            assert (code, ends.count("cut")) == (0, 450)
            assert b"Traceback" not in r.log, r.log[-2000:]
        await eventually(lambda: slow.running == 0, 10)
