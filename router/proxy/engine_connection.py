"""One HTTP/1 connection to an engine, carrying one exchange at a time.

llhttp parses strictly. This module also refuses what llhttp allows although two readers of the stream could read it
differently: a transfer coding other than `chunked`, an upgrade, bytes that answer no request. It refuses as well
what would fill memory or keep the loop busy without being an answer: heads, chunk framing and trailers larger than
`OVERHEAD_BYTES`. After any of these, and after an exchange that did not end cleanly, the connection is not reused.

The reader has two methods. `read()` returns what has arrived since the last call, at once if something has.
`pipe()` passes each piece on in the same turn of the loop in which it arrived, which saves a future and a task's
wake-up per chunk of a stream. Nothing is read from the socket while more than `HIGH_WATER_BYTES` wait to be read,
or while the sink has had enough, so a client that stops reading stops its engine and does not fill the router's
memory.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable
from enum import Enum
from typing import Final

import httptools

from router.proxy.headers import Headers
from router.proxy.timer import DeadlineTimer

HIGH_WATER_BYTES: Final = 64 * 1024
JOINED_BYTES: Final = 16 * 1024  # up to here copying a body to its head is cheaper than a write of two pieces
OVERHEAD_BYTES: Final = 64 * 1024  # of an answer: heads (1xx included), chunk framing, trailers; vLLM's has 150 bytes
FRAMING_PER_BODY_BYTE: Final = 16  # not counted as overhead; one-byte chunks have 5
STATUSES: Final = range(100, 600)

Sink = Callable[[bytes, bool], bool]
"""Takes a piece of an answer, and whether it is the last one. Returns True when the sink has had enough for now."""


class ExchangeFailure(Enum):
    """The reason why an exchange ended before its answer was whole."""

    CLOSED = "the engine closed the connection"
    MALFORMED = "the engine's answer is not valid HTTP"
    LATE = "the engine was silent for too long"
    REPORTED = "the engine reported a failure in its answer"
    STOPPED = "the router stopped before the answer was whole"
    STUCK = "the engine made no progress"


class EngineConnection(asyncio.Protocol):
    """One connection. `on_lost` is called once, when the connection is lost."""

    _timer: DeadlineTimer  # this and the parser exist while the connection does, since both refer to it
    _parser: httptools.HttpResponseParser

    _arrivals: select.poll

    __deletable__ = ("_parser",)

    def __init__(self, loop: asyncio.AbstractEventLoop, on_lost: Callable[[EngineConnection], None]) -> None:
        self._loop = loop
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._busy = False
        self._clean = False  # may carry another exchange
        self._idle_s = 0.0
        self._sent_s = 0.0
        self.exchanges = 0  # that it has carried
        self.connect_s = 0.0  # time to connect, for the exchange that had to wait for it
        self._reset("GET")

    def _reset(self, method: str) -> None:
        self.status = 0
        self.headers: Headers = []
        self._collected: Headers = []
        self._silent = True  # no byte of the answer has arrived
        self.complete = False
        self.failure: ExchangeFailure | None = None
        self._bodiless = method == "HEAD"
        self._until_close = False
        self._overhead_bytes = 0  # read so far, less the body and the framing that it may have
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._sink: Sink | None = None

    # called by the exchange's owner

    def send(self, method: str, head: bytes, body: bytes, first_byte_s: float, idle_s: float) -> None:
        """Send a request in one system call, without copying a large body."""
        assert self._transport is not None
        self._reset(method)
        self.exchanges += 1
        self._busy = True
        self._clean = False
        self._idle_s = idle_s
        self._sent_s = self._loop.time()
        self._timer.set(first_byte_s)
        if len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    async def wait_begin(self) -> bool:
        """Wait for the first byte of the body, or the answer's end: from then on `status` and `headers` are valid.
        Return False when there is a `failure` instead.
        """
        if not self._over and not self._pieces:
            await self._wait()
        return bool(self._pieces) or self.complete

    async def read(self) -> bytes:
        """Return body bytes as they arrive, never empty; `b""` at the end, where `complete` is True or `failure`
        has the reason.
        """
        if not self._over and not self._pieces:
            await self._wait()
        data = self._take_pieces()
        self._resume()
        return data

    async def pipe(self, sink: Sink) -> bool:
        """Pass everything on to `sink` as it arrives. Return False at the end, where `complete` is True or
        `failure` has the reason, and True when `sink` has had enough: nothing is read from the socket until the
        next call.
        """
        self._resume()
        if self._pieces:
            self._pass_on(sink)
        self._sink = sink
        try:
            while not self._over and not self._paused:
                await self._wait()
        finally:
            self._sink = None
        if self._pieces:  # received before the failure
            sink(self._take_pieces(), self.complete)
        return not self._over

    def _wait(self) -> asyncio.Future[None]:
        self._waiter = waiter = self._loop.create_future()
        return waiter

    @property
    def _over(self) -> bool:
        return self.complete or self.failure is not None

    def _pass_on(self, sink: Sink) -> None:
        if sink(self._take_pieces(), self.complete) and not self.complete:
            self._pause()

    def _take_pieces(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self._waiting_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def drained(self) -> bool:
        """True if the answer is whole and all of it was read."""
        return self.complete and not self._pieces

    @property
    def stale(self) -> bool:
        """True if the engine closed the connection without a byte of answer: an idle connection may have been
        closed meanwhile.
        """
        return self._silent and self.failure is ExchangeFailure.CLOSED

    def sent_since_s(self) -> float:
        """Return the seconds since the request was sent."""
        return self._loop.time() - self._sent_s

    def release(self) -> bool:
        """End the exchange. Return whether the connection can be reused; if not, it was closed, which aborts the
        engine's work.
        """
        self._busy = False
        self._timer.clear()
        transport = self._transport
        if transport is None:
            return False
        if self._clean and not self._pieces and not transport.get_write_buffer_size() and not transport.is_closing():
            return True
        transport.abort()
        return False

    def abandon(self, exchange: int) -> None:
        """End the exchange with this number as `STUCK`, if it is still under way."""
        if self._busy and self.exchanges == exchange:
            self._fail(ExchangeFailure.STUCK)

    def go_idle(self, seconds: float) -> None:
        """Keep the idle connection for at most `seconds`."""
        self.connect_s = 0.0
        self._timer.set(seconds)

    def readable(self) -> bool:
        """Return whether unread bytes have arrived. On an idle connection they are the engine's close, or bytes
        that answer no request (urllib3 `is_connection_dropped`).
        """
        return bool(self._arrivals.poll(0))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # called by the loop

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._arrivals = select.poll()
        self._arrivals.register(transport.get_extra_info("socket"), select.POLLIN)
        self._timer = DeadlineTimer(self._loop, self._on_deadline)
        self._parser = httptools.HttpResponseParser(self)

    def data_received(self, data: bytes) -> None:
        if not self._busy:  # an answer to no request
            self.close()
            return
        self._silent = False
        self._overhead_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(ExchangeFailure.MALFORMED)
            return
        if self._overhead_bytes > OVERHEAD_BYTES:
            self._fail(ExchangeFailure.MALFORMED)
            return
        arrived = bool(self._pieces)
        if arrived and self._sink is not None:
            self._pass_on(self._sink)
        elif self._waiting_bytes > HIGH_WATER_BYTES:
            self._pause()
        if self.complete:
            self._timer.clear()
            self._wake()
        elif arrived:
            if not self._paused:
                self._timer.set(self._idle_s)
            if self._paused or self._sink is None:
                self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._timer.close()
        del self._parser  # without a reference cycle everything is freed at once, not by a later garbage collection
        if self._busy and not self.complete:
            if self._until_close and exc is None and self.failure is None:
                self.complete = True
            else:
                self.failure = self.failure or ExchangeFailure.CLOSED
            self._wake()
        self._on_lost(self)

    # parser callbacks; a raised `HttpParserError` stops the parser

    def on_message_begin(self) -> None:
        """Raises `HttpParserError` for a second answer to one request."""
        if self.complete:
            raise httptools.HttpParserError("a second answer to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._collected.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Raises `HttpParserError` for a transfer coding other than chunked, or a status unknown to HTTP."""
        self.status = self._parser.get_status_code()
        if self.status not in STATUSES:
            raise httptools.HttpParserError("no status of HTTP")
        self.headers, self._collected = self._collected, []  # headers collected from now on are trailers: dropped
        codings = [value for name, value in self.headers if name == b"transfer-encoding"]
        if codings and (len(codings) > 1 or codings[0].lower() != b"chunked"):
            raise httptools.HttpParserError("a transfer coding other than chunked")
        if self.status < 200:
            return
        if self._bodiless:
            self.complete = True
        elif not codings and self.status not in (204, 304):
            self._until_close = all(name != b"content-length" for name, _ in self.headers)

    def on_body(self, body: bytes) -> None:
        if self._bodiless:
            return
        self._overhead_bytes -= len(body) * (1 + FRAMING_PER_BODY_BYTE)
        self._pieces.append(body)
        self._waiting_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue, 103 Early Hints: the answer follows
            return
        self.complete = True
        self._clean = self._parser.should_keep_alive()

    # failure and backpressure

    def _on_deadline(self) -> None:
        if self._busy:
            self._fail(ExchangeFailure.LATE)
        else:
            self.close()

    def _fail(self, failure: ExchangeFailure) -> None:
        self._clean = False
        if not self.complete:  # bytes after a whole answer spoil the connection, not the answer
            self.failure = failure
        self._wake()
        self.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause(self) -> None:
        """Stop reading. The silence is now caused by the router, so the idle deadline does not run."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()
            self._timer.clear()

    def _resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._timer.set(self._idle_s)
