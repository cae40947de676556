"""The router's memory is bounded by what it was told, not by what clients and engines do: measured on a process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL, Router
from tests.fakes.engines import engine, eventually, is_proof

MB = 1024 * 1024
PIECE = b"data: " + b"x" * 65_526 + b"\n\n"  # 64 KiB
STALLED_S = 0.3  # an engine that could not write for so long is being held back


class Flood:
    """An engine that streams as fast as it is let: `pieces` of 64 KiB to every request."""

    def __init__(self, pieces: int) -> None:
        self.pieces = pieces
        self.url = ""
        self.sent_bytes = 0
        self._sent_at = 0.0

    @property
    def stalled(self) -> bool:
        return self.sent_bytes > 0 and asyncio.get_running_loop().time() - self._sent_at > STALLED_S

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0] or b"0")
                body = await reader.readexactly(length)
                if is_proof(head, body):
                    writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
                elif head.startswith(b"POST"):
                    await self._flood(writer)
                else:
                    card = {"object": "list", "data": [{"id": MODEL, "object": "model"}]}
                    body = json.dumps(card).encode() if b"/v1/models" in head else b""
                    status = b"404 Not Found" if b"/kv_event_sources" in head else b"200 OK"
                    writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _flood(self, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n"
            b"connection: close\r\n\r\n"
        )
        for _ in range(self.pieces):
            writer.write(b"%x\r\n%b\r\n" % (len(PIECE), PIECE))
            await writer.drain()
            self.sent_bytes += len(PIECE)
            self._sent_at = asyncio.get_running_loop().time()
        writer.write(b"0\r\n\r\n")


@asynccontextmanager
async def flood(pieces: int) -> AsyncIterator[Flood]:
    running = Flood(pieces)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    running.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        yield running


async def test_a_client_that_stops_reading_stops_its_engine(router_process, fleet_config) -> None:
    """Four of them, each owed 32 MB: what waits lies in the sockets' buffers. Then they read on, and get it all."""
    owed = 512 * len(PIECE)
    async with flood(512) as fast, router_process(fleet_config([fast.url], tokenizers={})) as r:
        before = r.rss_bytes
        body = {"model": MODEL, "prompt": [1, 2, 3], "stream": True, "stream_options": {"include_usage": True}}
        answers = [
            await r.http.send(r.http.build_request("POST", "/v1/completions", json=body), stream=True) for _ in range(4)
        ]
        await eventually(lambda: fast.stalled)
        assert fast.sent_bytes < 4 * owed  # held back, not just done
        assert r.rss_bytes - before < 8 * MB
        for answer in answers:
            assert sum([len(piece) async for piece in answer.aiter_raw()]) == owed
        assert fast.sent_bytes == 4 * owed
        assert r.rss_bytes - before < 8 * MB


async def test_bodies_beyond_the_budget_are_refused(router) -> None:
    """One upload holds most of the budget before its end; small requests still pass, a second large one does not."""
    async with engine() as fake, router([fake], limits={"body_budget_bytes": 1_000_000}) as r:
        text = json.dumps({"model": MODEL, "prompt": "word " * 100, "max_tokens": 1, "user": "u" * 600_000}).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", r.app.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(text), text[:-1]))
        await eventually(lambda: r.limiter.held_bytes >= len(text) - 1)
        refused = await r.post("/v1/completions", text)
        assert refused.status_code == 429
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["code"] == "too_many_bytes"
        assert (await r.post("/v1/completions", {"model": MODEL, "prompt": "hello"})).status_code == 200
        writer.write(text[-1:])
        assert (await reader.readline()) == b"HTTP/1.1 200 OK\r\n"
        writer.close()
        assert (await r.post("/v1/completions", text)).status_code == 200
        await eventually(r.idle)


async def test_an_upload_that_is_given_up_gives_its_bytes_back(router) -> None:
    async with engine() as fake, router([fake]) as r:
        _, writer = await asyncio.open_connection("127.0.0.1", r.app.port)
        writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: r\r\ncontent-length: 5000000\r\n\r\n" + b" " * 100_000)
        await eventually(lambda: r.limiter.held_bytes >= 100_000)
        writer.close()
        await eventually(r.idle)
        assert fake.seen("/v1/completions") == []


async def test_thousands_of_requests_leave_nothing(router_process, fleet_config) -> None:
    """Different prompts to a small cache, so that what grows with what was seen would show."""
    async with (
        engine(blocks=256, answer_tokens=1) as fake,
        router_process(fleet_config([fake], records={"keep": 100})) as r,
    ):
        await many(r, 1500, "first")  # what is remembered on purpose is remembered by now
        before = r.rss_bytes
        await many(r, 2000, "then")
        assert r.rss_bytes - before < 5 * MB
        for name in ("warmroute_in_flight_requests", "warmroute_target_requests", "warmroute_errors_total"):
            assert await r.metric(name) == 0, name
        assert await r.metric("warmroute_target_prefilling_requests") == 0
        assert await r.metric("warmroute_requests_total", status="2xx") == 3500
        assert await r.metric("warmroute_index_blocks") <= 256
        assert (await r.metric("warmroute_index_orphan_blocks")) == 0
        assert fake.gauges().running == 0


async def many(router: Router, count: int, name: str) -> None:
    """That many small requests over eight connections, without the cost of a whole HTTP client."""
    host, port = router.url.removeprefix("http://").split(":")

    async def some(first: int) -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        for number in range(first, count, 8):
            said = " ".join(f"{name} {number} {word}" for word in range(8))
            body = {"model": MODEL, "messages": [{"role": "user", "content": said}], "max_tokens": 1}
            text = json.dumps(body).encode()
            writer.write(b"POST %b HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\n" % PATH.encode())
            writer.write(b"content-length: %d\r\n\r\n%b" % (len(text), text))
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200"), head
            length = head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]
            await reader.readexactly(int(length))
        writer.close()

    await asyncio.gather(*(some(first) for first in range(8)))
