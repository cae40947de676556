"""Concurrent streams: what they cost our router's process in CPU time and memory, and whether it delays any of them.

500 streams of 50 tokens/s are a fleet at work; 5,000 of 2 tokens/s are many clients of slow answers, all open at once.

Each chunk carries the time at which the backend wrote it, so a client knows how long it was on its way. Every stream is
measured twice, through the router and past it, in turns: a chunk that was late past the router as well was not delayed
by it. The client is this process, which does nothing else meanwhile.
"""

from __future__ import annotations

import asyncio
import json
import resource
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
from tests.bench.routers import Running
from tests.bench.row import BenchRun, NotMeasured, Row

LATE_MS = 50.0
GRACE_S = 20.0
READ_AHEAD_S = 1.0  # before the first stream ends: its memory is read
DESCRIPTORS_PER_STREAM = 4  # of the router: it lets one client have four fifths of a third of its open files


class Crowd(NamedTuple):
    """Streams that are open together. `started_s`: over which they begin, so that their chunks are spread in time."""

    streams: int
    tokens_per_s: int
    started_s: float

    def __str__(self) -> str:
        return f"{self.streams:,} streams of {self.tokens_per_s} tokens/s"


BUSY = Crowd(500, 50, 1.0)
MANY = Crowd(5_000, 2, 10.0)


class Arrived(NamedTuple):
    """Milliseconds that chunks were on their way, of those read at once only the last one, and their number."""

    late_ms: list[float]
    chunks: int
    rss_mb: float  # of the watched router, while all streams were open; 0 without one


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


async def read_all(port: int, crowd: Crowd, chunks: int, router: Running | None = None) -> Arrived:
    """Run all streams at once. `router`: whose memory is read shortly before the first one ends. Raises NotMeasured
    when one breaks off or is incomplete.
    """
    asked = {"model": MODEL, "stream": True, "max_tokens": chunks, "messages": [{"role": "user", "content": "go on"}]}
    body = json.dumps(asked).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    loop = asyncio.get_running_loop()
    late_ms: list[float] = []
    ends: list[asyncio.Future[int]] = []
    transports = []
    began_s = loop.time()
    for n in range(crowd.streams):
        done: asyncio.Future[int] = loop.create_future()
        ends.append(done)
        transport, _ = await loop.create_connection(partial(Stream, request, late_ms, done), "127.0.0.1", port)
        transports.append(transport)
        await asyncio.sleep(began_s + crowd.started_s * (n + 1) / crowd.streams - loop.time())
    await asyncio.sleep(max(0.0, began_s + chunks / crowd.tokens_per_s - READ_AHEAD_S - loop.time()))
    rss_mb = 0.0 if router is None else router.rss_mb()
    async with asyncio.timeout(chunks / crowd.tokens_per_s + GRACE_S):
        whole = await asyncio.gather(*ends)
    for transport in transports:
        transport.close()
    if set(whole) != {chunks}:
        raise NotMeasured(f"streams of {min(whole)} to {max(whole)} chunks instead of {chunks}")
    return Arrived(late_ms, sum(whole), rss_mb)


class Seen(NamedTuple):
    """What the repetitions measured, one value each."""

    percent: list[float]  # of a core
    kb_per_stream: list[float]  # of memory, while all are open
    caused: list[float]  # late chunks beyond those past the router
    p99: list[float]
    direct_p99: list[float]


def watch(run: BenchRun, crowd: Crowd, chunks: int, settings: dict[str, Any]) -> Seen:
    """Measure the streams through the router and past it, in turns."""
    seen = Seen([], [], [], [], [])
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(2, spacing_ms=1000 / crowd.tokens_per_s))
        router = stack.enter_context(routers.warmroute(backends, run.folder, settings))
        memory_mb = router.rss_mb()  # before the first streams: what they have left behind is used again
        for repetition in range(run.effort.repetitions):
            run.report(f"{crowd.streams} streams, repetition {repetition + 1}")
            before, began = router.cpu_s(), time.monotonic()
            through = uvloop.run(read_all(router.port, crowd, chunks, router))
            took_s = time.monotonic() - began - crowd.started_s  # the first begins as early as the last one ends late
            seen.percent.append(100 * (router.cpu_s() - before) / took_s)
            seen.kb_per_stream.append((through.rss_mb - memory_mb) * 1e3 / crowd.streams)
            direct = uvloop.run(read_all(backends[0], crowd, chunks))
            seen.caused.append(float(max(0, late(through) - late(direct))))
            seen.p99.append(quantile(through.late_ms, 0.99))
            seen.direct_p99.append(quantile(direct.late_ms, 0.99))
    return seen


def busy(run: BenchRun) -> list[Line]:
    seen = watch(run, BUSY, BUSY.tokens_per_s * run.effort.of(8, 4), routers.EVEN)
    return [Line(f"{BUSY}: CPU of a core", "%", seen.percent, bar=Bar(55.0)), *_delays(BUSY, seen)]


def many(run: BenchRun) -> list[Line]:
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if files < (needed := MANY.streams * DESCRIPTORS_PER_STREAM):
        raise NotMeasured(f"{needed:,} open files are needed, {files:,} are allowed (`ulimit -Hn`)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
    settings = {**routers.EVEN, "limits": {"concurrent": 2 * MANY.streams}}
    seen = watch(run, MANY, MANY.tokens_per_s * int(MANY.started_s + run.effort.of(15, 5)), settings)
    return [
        Line(f"{MANY}: memory of one", "KB", seen.kb_per_stream, bar=Bar(40.0)),
        *_delays(MANY, seen),
        Line(f"{MANY}: CPU of a core, its beginning included", "%", seen.percent),
    ]


def _delays(crowd: Crowd, seen: Seen) -> list[Line]:
    late_bar = Bar(0.0, take="worst")
    return [
        Line(f"{crowd}: chunks late by more than {LATE_MS:g} ms, beyond direct", "", seen.caused, bar=late_bar),
        Line(f"{crowd}: p99 on the way", "ms", seen.p99, seen.direct_p99, "direct"),
    ]


def late(arrived: Arrived) -> int:
    return sum(ms > LATE_MS for ms in arrived.late_ms)


ROWS = (
    Row("streams", "many streams at once", busy, 130, 14),
    Row("open-streams", "thousands of open streams", many, 270, 40),
)
