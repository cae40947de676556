"""The server side of one client connection: llhttp parses, and this bounds what a client may do.

A cap on the head's size; deadlines for the head, for pauses in the body, for a reader that stops reading and for idle
keep-alive (one lazy timer for all, set once per read); refusal of everything that two HTTP parsers could read
differently; bounds on pipelining and on chunk framing; the client's loss told at once to the exchange. One task answers
a connection's requests, one after another. An answer that needs none of the request's body may come early: the rest is
read and thrown away, for a limited time.

What llhttp already refuses (both lengths, two lengths, folded lines, bare line feeds, ...) is listed by the tests.
"""

from __future__ import annotations

import asyncio
import logging
import urllib.parse
from collections import deque
from typing import NamedTuple, Protocol, runtime_checkable

import httptools
import msgspec

from router.proxy.client_exchange import STATUS_LINES, ClientExchange, RequestHead
from router.proxy.timer import DeadlineTimer
from router.tasks import Tasks

log = logging.getLogger("warmroute.web")

HIGH_WATER_BYTES = 64 * 1024
QUEUED_REQUESTS = 64  # pipelined by one client within one read
FRAMING_PER_BODY_BYTE = 16  # chunk sizes, extensions and trailers; one-byte chunks have 5


class ConnectionLimits(NamedTuple):
    header_bytes: int
    header_timeout_s: float
    body_idle_timeout_s: float
    keepalive_s: float
    stall_timeout_s: float  # a client that takes nothing of what was sent for so long is cut


@runtime_checkable
class RequestHandler(Protocol):
    """Who answers requests."""

    async def answer(self, exchange: ClientExchange) -> None:
        """Answers `exchange`; what it raises becomes a 500."""


class ConnectionContext(NamedTuple):
    """What all connections of a listener share."""

    answering: RequestHandler
    bounds: ConnectionLimits
    connections: set[ClientConnection]
    tasks: Tasks
    loop: asyncio.AbstractEventLoop


class UnfitRequest(Exception):
    """The request is refused and its connection closed. Raised in parser callbacks, it stops the parser."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientConnection(asyncio.Protocol):
    """`_answering` is the exchange being answered, `_reading` the last begun: they differ in pipelining."""

    transport: asyncio.Transport
    task: asyncio.Task[None]

    def __init__(self, house: ConnectionContext) -> None:
        self._house = house
        self._bounds = house.bounds
        self._timer = DeadlineTimer(house.loop, self._late)
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what comes after is thrown away here
        self._answering: ClientExchange | None = None
        self._reading: ClientExchange | None = None
        self._queue: deque[ClientExchange] = deque()
        self._serving = False  # the task that answers has begun
        self._next: asyncio.Future[None] | None = None  # it waits for a request
        self._caught_up: asyncio.Future[None] | None = None  # it waits for the client to read
        self.behind = False
        self._read_paused = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = True
        self._idle = True  # between requests: nothing of the next one has come
        self._head_bytes = 0  # read since the head began, a little of the request before included
        self._read_bytes = 0  # by the current read
        self._framing_bytes = 0  # read since the head ended, less the body
        self._held: list[bytes] = []  # read ahead of the answer to the running request
        self._held_bytes = 0

    # Reading

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._house.connections.add(self)
        self._timer.set(self._bounds.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._house.connections.discard(self)
        if self._answering is not None:
            self._answering.lost()
        self._timer.close()
        self._queue.clear()
        self._held.clear()
        self.behind = False
        self._wake()
        del self._parser  # it knows us as we know it: parted, both go at once, and not with the collector's next round

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        reading = self._reading
        if self._answering is not None and reading is not None and not reading.arriving:
            self._hold(data)
            return
        self._read_bytes = len(data)
        began = self._in_head and self._idle
        if self._in_head:
            self._idle = False
            self._head_bytes += len(data)
        else:
            self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
            self._check_size()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, UnfitRequest) as error:
            self._refuse(error)
            return
        self._after_read(began)

    def _after_read(self, began: bool) -> None:
        """One deadline for what is still to come; reading rests while nobody wants more of the body."""
        reading = self._reading
        if self._in_head or reading is None:
            if self._answering is not None:
                self._timer.off()
            elif began:
                self._timer.set(self._bounds.header_timeout_s)
        elif reading.complete or reading.gone:
            return
        elif not reading.wanted and reading.buffered > HIGH_WATER_BYTES:  # the pause is ours now, not the client's
            self._pause_reading()
            self._timer.off()
        else:
            reading.tell()
            self._timer.set(self._bounds.body_idle_timeout_s)

    def _hold(self, data: bytes) -> None:
        """The next request waits for the end of this answer, but the loss of the client must still be seen: read on."""
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HIGH_WATER_BYTES:
            self._pause_reading()

    def _check_size(self) -> None:
        bounds = self._bounds
        if self._in_head:
            if self._head_bytes > bounds.header_bytes:
                raise UnfitRequest(431, f"the request's head is larger than {bounds.header_bytes} bytes")
        elif self._framing_bytes > bounds.header_bytes:
            raise UnfitRequest(400, "the framing of the body outweighs the body")

    def read_on(self) -> None:
        """Somebody waits for more of the body."""
        if self._read_paused:
            if not self._in_head:
                self._timer.set(self._bounds.body_idle_timeout_s)
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self.transport.resume_reading()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._url = b""
        self._headers = []
        self._in_head = True
        self._head_bytes = self._read_bytes

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        asked = self._asked()
        self._check_head(asked)
        exchange = self._reading = ClientExchange(self, asked)
        self._in_head = False
        self._framing_bytes = 0
        self._headers = []  # what comes now are trailers: not part of the request
        if self._answering is None:
            self._answering = exchange
            self._serve_on()
        elif len(self._queue) < QUEUED_REQUESTS:
            self._queue.append(exchange)
        else:
            raise UnfitRequest(400, "too many requests sent ahead")

    def _asked(self) -> RequestHead:
        target, version = self._url, self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise UnfitRequest(400, "this version of HTTP is not spoken here")
        if not target.startswith(b"/") or b"#" in target:
            url = httptools.parse_url(target)
            target = (url.path or b"/") + (b"?" + url.query if url.query else b"")
        path = target.partition(b"?")[0].decode("ascii")
        return RequestHead(
            self._parser.get_method().decode("ascii"),
            urllib.parse.unquote(path) if "%" in path else path,
            target,
            self._headers,
            dict(reversed(self._headers)),
            version == "1.1",
            version == "1.1" and self._parser.should_keep_alive(),
        )

    def _check_head(self, asked: RequestHead) -> None:
        if self._parser.should_upgrade():
            raise UnfitRequest(400, "no upgrade is possible")
        if b"transfer-encoding" in asked.fields:
            if not asked.http_1_1:
                raise UnfitRequest(400, "HTTP/1.0 has no transfer codings")
            codings = [value.lower() for name, value in asked.headers if name == b"transfer-encoding"]
            if any(coding != b"chunked" for coding in codings):
                raise UnfitRequest(400, "a transfer coding other than chunked")
        if self._head_bytes > self._bounds.header_bytes:
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in asked.headers)
            if size > self._bounds.header_bytes:
                raise UnfitRequest(431, f"the request's head is larger than {self._bounds.header_bytes} bytes")

    def on_body(self, body: bytes) -> None:
        reading = self._reading
        assert reading is not None
        self._framing_bytes -= len(body) * (1 + FRAMING_PER_BODY_BYTE)
        if not reading.complete and not reading.gone:
            reading.pieces.append(body)
            reading.buffered += len(body)

    def on_message_complete(self) -> None:
        reading = self._reading
        assert reading is not None
        self._in_head = True
        self._head_bytes = 0
        reading.arriving = False
        if reading.complete and reading is not self._answering:
            self._rest()
        else:
            reading.tell()

    # From one request to the next

    def _serve_on(self) -> None:
        if not self._serving:
            self._serving = True
            self.task = self._house.tasks.spawn("client", self._serve())
        else:
            self._wake()

    def _wake(self) -> None:
        for waiter in (self._next, self._caught_up):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def _serve(self) -> None:
        """The task of this connection, for as long as there is one."""
        while not self.transport.is_closing():
            if self._answering is not None:
                await self._answer(self._answering)
            else:
                self._next = self._house.loop.create_future()
                await self._next

    async def _answer(self, exchange: ClientExchange) -> None:
        try:
            await self._house.answering.answer(exchange)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
        if not exchange.complete and not exchange.gone:
            if exchange.started:
                exchange.cut()
            else:
                exchange.answer(500, [(b"content-type", b"text/plain")], b"Internal Server Error")
        self._answered()

    def _answered(self) -> None:
        self._answering = None
        if self.transport.is_closing():
            self._timer.set(self._bounds.stall_timeout_s)  # closes when all is taken, or then
            return
        self._resume_reading()
        if self._queue:
            self._answering = self._queue.popleft()
        elif self._reading is not None and self._reading.arriving:
            self._timer.set(self._bounds.header_timeout_s)  # for all that is left of it
        else:
            self._rest()

    def _rest(self) -> None:
        """Idle until the next request, part of which may be here already."""
        self._idle = True
        self._timer.set(self._bounds.keepalive_s)
        if self._held:
            data = b"".join(self._held)
            self._held.clear()
            self._held_bytes = 0
            self.data_received(data)

    # Refusing and cutting

    def _refuse(self, error: Exception) -> None:
        """An answer, unless one is under way or owed to a request before this one; then the end, in any case."""
        reason = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
        status = reason.status if isinstance(reason, UnfitRequest) else 400
        message = str(reason) if isinstance(reason, UnfitRequest) else "this is not valid HTTP"
        self._end(status, message)

    def _end(self, status: int, message: str) -> None:
        running = self._answering
        if running is None or (running is self._reading and running.arriving and not running.started):
            self.transport.write(_plain_answer(status, message))
        if running is not None:
            running.lost()
        self.transport.close()
        self._timer.set(self._bounds.stall_timeout_s)

    def _late(self) -> None:
        if self.behind or self.transport.is_closing():
            self.transport.abort()
        elif self._idle or (self._answering is None and not self._in_head):
            self.transport.close()
        else:
            self._end(408, "the request did not arrive in time")

    # The client's pace

    def pause_writing(self) -> None:
        self.behind = True
        self._timer.set(self._bounds.stall_timeout_s)

    def resume_writing(self) -> None:
        self.behind = False
        if self._answering is not None:
            self._timer.off()
        else:
            self._timer.set(self._bounds.keepalive_s)
        self._wake()

    async def caught_up(self) -> None:
        while self.behind:
            self._caught_up = self._house.loop.create_future()
            await self._caught_up

    def shutdown(self) -> None:
        """The server stops: what runs may end, nothing more is begun."""
        self._queue.clear()
        if self._answering is None:
            self.transport.close()
        else:
            self._answering.keep_alive = False


def _plain_answer(status: int, message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    body = msgspec.json.encode({"error": error})
    return b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        STATUS_LINES[status],
        len(body),
        body,
    )
