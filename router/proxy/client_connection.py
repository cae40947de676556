"""The server side of one client connection: llhttp parses, and this module limits what a client may do.

A cap on the head's size; deadlines for the head, for pauses in the body, for a client that stops reading and for idle
keep-alive (one lazy timer for all, set once per read); refusal of everything that two HTTP parsers could read
differently; limits on pipelining and on chunk framing; the exchange learns at once that its client disconnected. One
task answers a connection's requests, one after another. An answer that needs none of the request's body may come early:
the rest is read and thrown away, for a limited time.

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
MAX_PIPELINED = 64  # requests of one client within one read
FRAMING_PER_BODY_BYTE = 16  # chunk sizes, extensions and trailers; one-byte chunks have 5


class ConnectionLimits(NamedTuple):
    header_bytes: int
    header_timeout_s: float
    body_idle_timeout_s: float
    keepalive_s: float
    stall_timeout_s: float  # a client that reads nothing of what was sent for so long is cut off


@runtime_checkable
class RequestHandler(Protocol):
    """Answers requests."""

    async def answer(self, exchange: ClientExchange) -> None:
        """Answer `exchange`; an exception becomes a 500."""


class ConnectionContext(NamedTuple):
    """The things that all connections of a listener share."""

    handler: RequestHandler
    limits: ConnectionLimits
    connections: set[ClientConnection]
    tasks: Tasks
    loop: asyncio.AbstractEventLoop


class UnfitRequest(Exception):
    """The request is refused and its connection closed. Raised in parser callbacks, it stops the parser."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientConnection(asyncio.Protocol):
    """One connection. `_current` is the exchange being answered, `_reading` the last one begun: they differ when the
    client pipelines.
    """

    transport: asyncio.Transport
    task: asyncio.Task[None]

    def __init__(self, context: ConnectionContext) -> None:
        self._context = context
        self._limits = context.limits
        self._timer = DeadlineTimer(context.loop, self._on_deadline)
        self._parser = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)  # what comes after is thrown away here
        self._current: ClientExchange | None = None
        self._reading: ClientExchange | None = None
        self._queue: deque[ClientExchange] = deque()
        self._serving = False  # the task that answers has been started
        self._next: asyncio.Future[None] | None = None  # it waits for a request
        self._writable: asyncio.Future[None] | None = None  # it waits for the client to read
        self.write_paused = False
        self._read_paused = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = True
        self._idle = True  # between requests: nothing of the next one has arrived
        self._head_bytes = 0  # read since the head began, a little of the request before included
        self._read_bytes = 0  # by the current read
        self._framing_bytes = 0  # read since the head ended, less the body
        self._read_ahead: list[bytes] = []  # received before the current request was answered
        self._read_ahead_bytes = 0

    # reading

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self._context.connections.add(self)
        self._timer.set(self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._context.connections.discard(self)
        if self._current is not None:
            self._current.on_disconnect()
        self._timer.close()
        self._queue.clear()
        self._read_ahead.clear()
        self.write_paused = False
        self._wake()
        del self._parser  # breaks the reference cycle: both are freed at once, and not with the next garbage collection

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        reading = self._reading
        if self._current is not None and reading is not None and not reading.arriving:
            self._keep_for_later(data)
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
        """Set the deadline for what is still to come; stop reading while the body is not read."""
        reading = self._reading
        if self._in_head or reading is None:
            if self._current is not None:
                self._timer.clear()
            elif began:
                self._timer.set(self._limits.header_timeout_s)
        elif reading.complete or reading.gone:
            return
        elif not reading.reader_waits and reading.buffered > HIGH_WATER_BYTES:  # now the pause is the router's own
            self._pause_reading()
            self._timer.clear()
        else:
            reading.wake()
            self._timer.set(self._limits.body_idle_timeout_s)

    def _keep_for_later(self, data: bytes) -> None:
        """Keep the next request until this answer ends; reading goes on, so that a disconnect is still seen."""
        self._read_ahead.append(data)
        self._read_ahead_bytes += len(data)
        if self._read_ahead_bytes > HIGH_WATER_BYTES:
            self._pause_reading()

    def _check_size(self) -> None:
        limits = self._limits
        if self._in_head:
            if self._head_bytes > limits.header_bytes:
                raise UnfitRequest(431, f"the request's head is larger than {limits.header_bytes} bytes")
        elif self._framing_bytes > limits.header_bytes:
            raise UnfitRequest(400, "the framing of the body is larger than the body")

    def resume_body(self) -> None:
        """Read more of the body."""
        if self._read_paused:
            if not self._in_head:
                self._timer.set(self._limits.body_idle_timeout_s)
            self._resume_reading()

    def _pause_reading(self) -> None:
        if not self._read_paused:
            self._read_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._read_paused:
            self._read_paused = False
            self.transport.resume_reading()

    # parser callbacks

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
        """Begin an exchange. Raises `UnfitRequest` when too many requests are pipelined."""
        head = self._parse_head()
        self._check_head(head)
        exchange = self._reading = ClientExchange(self, head)
        self._in_head = False
        self._framing_bytes = 0
        self._headers = []  # what comes now are trailers: not part of the request
        if self._current is None:
            self._current = exchange
            self._continue_serving()
        elif len(self._queue) < MAX_PIPELINED:
            self._queue.append(exchange)
        else:
            raise UnfitRequest(400, "too many pipelined requests")

    def _parse_head(self) -> RequestHead:
        target, version = self._url, self._parser.get_http_version()
        if version not in ("1.1", "1.0"):
            raise UnfitRequest(400, "this version of HTTP is not supported")
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

    def _check_head(self, head: RequestHead) -> None:
        if self._parser.should_upgrade():
            raise UnfitRequest(400, "upgrades are not supported")
        if b"transfer-encoding" in head.fields:
            if not head.http_1_1:
                raise UnfitRequest(400, "HTTP/1.0 has no transfer codings")
            codings = [value.lower() for name, value in head.headers if name == b"transfer-encoding"]
            if any(coding != b"chunked" for coding in codings):
                raise UnfitRequest(400, "a transfer coding other than chunked")
        if self._head_bytes > self._limits.header_bytes:
            size = len(self._url) + sum(len(name) + len(value) + 4 for name, value in head.headers)
            if size > self._limits.header_bytes:
                raise UnfitRequest(431, f"the request's head is larger than {self._limits.header_bytes} bytes")

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
        if reading.complete and reading is not self._current:
            self._go_idle()
        else:
            reading.wake()

    # from one request to the next

    def _continue_serving(self) -> None:
        if not self._serving:
            self._serving = True
            self.task = self._context.tasks.spawn("client", self._serve())
        else:
            self._wake()

    def _wake(self) -> None:
        for waiter in (self._next, self._writable):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def _serve(self) -> None:
        """Answer the requests of this connection until it closes."""
        while not self.transport.is_closing():
            if self._current is not None:
                await self._answer(self._current)
            else:
                self._next = self._context.loop.create_future()
                await self._next

    async def _answer(self, exchange: ClientExchange) -> None:
        try:
            await self._context.handler.answer(exchange)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
        if not exchange.complete and not exchange.gone:
            if exchange.started:
                exchange.abort()
            else:
                exchange.answer(500, [(b"content-type", b"text/plain")], b"Internal Server Error")
        self._after_answer()

    def _after_answer(self) -> None:
        self._current = None
        if self.transport.is_closing():
            self._timer.set(self._limits.stall_timeout_s)  # closes when everything was read, or then
            return
        self._resume_reading()
        if self._queue:
            self._current = self._queue.popleft()
        elif self._reading is not None and self._reading.arriving:
            self._timer.set(self._limits.header_timeout_s)  # for all that is left of it
        else:
            self._go_idle()

    def _go_idle(self) -> None:
        """Wait for the next request, part of which may be here already."""
        self._idle = True
        self._timer.set(self._limits.keepalive_s)
        if self._read_ahead:
            data = b"".join(self._read_ahead)
            self._read_ahead.clear()
            self._read_ahead_bytes = 0
            self.data_received(data)

    # refusing

    def _refuse(self, error: Exception) -> None:
        reason = error.__context__ if isinstance(error, httptools.HttpParserCallbackError) else error
        if isinstance(reason, UnfitRequest):
            self._close_with(reason.status, str(reason))
        else:
            self._close_with(400, "this is not valid HTTP")

    def _close_with(self, status: int, message: str) -> None:
        """Close the connection; send an error first unless an answer has started, or is due to an earlier request."""
        current = self._current
        if current is None or (current is self._reading and current.arriving and not current.started):
            self.transport.write(_error_response(status, message))
        if current is not None:
            current.on_disconnect()
        self.transport.close()
        self._timer.set(self._limits.stall_timeout_s)

    def _on_deadline(self) -> None:
        if self.write_paused or self.transport.is_closing():
            self.transport.abort()
        elif self._idle or (self._current is None and not self._in_head):
            self.transport.close()
        else:
            self._close_with(408, "the request did not arrive in time")

    # backpressure

    def pause_writing(self) -> None:
        self.write_paused = True
        self._timer.set(self._limits.stall_timeout_s)

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._current is not None:
            self._timer.clear()
        else:
            self._timer.set(self._limits.keepalive_s)
        self._wake()

    async def drain(self) -> None:
        while self.write_paused:
            self._writable = self._context.loop.create_future()
            await self._writable

    def shutdown(self) -> None:
        """Begin no more requests; the one being answered may end."""
        self._queue.clear()
        if self._current is None:
            self.transport.close()
        else:
            self._current.keep_alive = False


def _error_response(status: int, message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    body = msgspec.json.encode({"error": error})
    head = b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
    return head % (STATUS_LINES[status], len(body)) + body
