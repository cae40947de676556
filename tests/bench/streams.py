"""500 concurrent streams of 50 tokens/s: what they cost our router's process, and whether it delays any of them.

Each chunk carries the time at which the backend wrote it, so a client knows how long it was on its way. Every stream is
measured twice, through the router and past it, in turns: a chunk that was late past the router as well was not delayed
by it. The client is this process, which does nothing else meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple, cast

import httptools
import uvloop

from tests.bench import answers, routers
from tests.bench.answers import MODEL
from tests.bench.figures import Bar, Line, quantile
from tests.bench.pieces import Pieces
from tests.bench.row import BenchRun, NotMeasured, Row

STREAMS, TOKENS_PER_S = 500, 50
LATE_MS = 50.0
STARTED_S = 1.0  # over which the streams begin, so that their chunks do not all come at once
GRACE_S = 20.0


class Arrived(NamedTuple):
    """Milliseconds that chunks were on their way, of those read at once only the last one, and their number."""

    late_ms: list[float]
    chunks: int


class Stream(asyncio.Protocol):
    """One stream, from its request to its end."""

    def __init__(self, request: bytes, late_ms: list[float], done: asyncio.Future[int]) -> None:
        self._request = request
        self._late_ms = late_ms
        self._done = done
        self._pieces = Pieces()
        self._parser: Any = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if (written_ns := answers.chunk_ns(data)) is not None:
            self._late_ms.append((time.monotonic_ns() - written_ns) / 1e6)
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._pieces.read(body)

    def on_message_complete(self) -> None:
        if not self._done.done():
            self._done.set_result(self._pieces.seen)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(NotMeasured("a stream broke off"))


async def read_all(port: int, streams: int, chunks: int) -> Arrived:
    """Run all streams at once. Raises NotMeasured when one breaks off or is incomplete."""
    asked = {"model": MODEL, "stream": True, "max_tokens": chunks, "messages": [{"role": "user", "content": "go on"}]}
    body = json.dumps(asked).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    loop = asyncio.get_running_loop()
    late_ms: list[float] = []
    ends: list[asyncio.Future[int]] = []
    transports = []
    for _ in range(streams):
        done: asyncio.Future[int] = loop.create_future()
        ends.append(done)
        transport, _ = await loop.create_connection(partial(Stream, request, late_ms, done), "127.0.0.1", port)
        transports.append(transport)
        await asyncio.sleep(STARTED_S / streams)
    async with asyncio.timeout(chunks / TOKENS_PER_S + GRACE_S):
        whole = await asyncio.gather(*ends)
    for transport in transports:
        transport.close()
    if set(whole) != {chunks}:
        raise NotMeasured(f"streams of {min(whole)} to {max(whole)} chunks instead of {chunks}")
    return Arrived(late_ms, sum(whole))


def measure(run: BenchRun) -> list[Line]:
    chunks = TOKENS_PER_S * run.effort.of(8, 4)
    percent: list[float] = []
    caused: list[float] = []
    p99: list[float] = []
    direct_p99: list[float] = []
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(2, spacing_ms=1000 / TOKENS_PER_S))
        router = stack.enter_context(routers.warmroute(backends, run.folder))
        for repetition in range(run.effort.repetitions):
            run.report(f"{STREAMS} streams, repetition {repetition + 1}")
            before, began = router.cpu_s(), time.monotonic()
            through = uvloop.run(read_all(router.port, STREAMS, chunks))
            took_s = time.monotonic() - began - STARTED_S  # the first stream begins as early as the last one ends late
            percent.append(100 * (router.cpu_s() - before) / took_s)
            direct = uvloop.run(read_all(backends[0], STREAMS, chunks))
            caused.append(float(max(0, late(through) - late(direct))))
            p99.append(quantile(through.late_ms, 0.99))
            direct_p99.append(quantile(direct.late_ms, 0.99))
    what = f"{STREAMS} streams of {TOKENS_PER_S} tokens/s"
    return [
        Line(f"{what}: CPU of a core", "%", percent, bar=Bar(60.0)),
        Line(f"{what}: chunks late by more than {LATE_MS:g} ms, beyond direct", "", caused, bar=Bar(0.0, take="worst")),
        Line(f"{what}: p99 on the way", "ms", p99, direct_p99, "direct"),
    ]


def late(arrived: Arrived) -> int:
    return sum(ms > LATE_MS for ms in arrived.late_ms)


ROWS = (Row("streams", "many streams at once", measure, 130, 14),)
