"""The server side of one client connection: llhttp parses, and this module limits what a client may do.

It caps the head's size; sets deadlines for the head, the body, idle keep-alive and a client that stops reading
(lazy timers, set once per read); refuses everything that two HTTP parsers could read differently; limits pipelining
and chunk framing; and notifies the exchange at once when its client disconnects. One task answers a connection's
requests one after another, each only when the client has read what it was sent. An answer that needs none of the
body may be sent early: the rest of the body is read and discarded, for a limited time. The tests list what llhttp
itself refuses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

import httptools

from router.proxy.call import Headers
from router.proxy.client_address import TrustedProxies
from router.proxy.client_exchange import ClientExchange, RequestHandler
from router.proxy.client_sender import ClientSender
from router.proxy.connection_limits import MIN_BODY_RATE, ConnectionLimits
from router.proxy.request_head import UnfitRequest, check_begun, measure_head, render_refusal
from router.proxy.request_parser import RequestParser

log = logging.getLogger("warmroute.web")

HIGH_WATER_BYTES: Final = 64 * 1024
AHEAD_BYTES: Final = 16 * 1024  # of further requests read before the current one is answered; beyond, reading stops
SLICE_BYTES: Final = 2 * 1024  # parsed at once where requests may follow each other
CHUNKED_BYTES: Final = 8 * 1024  # the same for a chunked body, whose end is not known
MAX_PIPELINED: Final = 128  # requests within one slice: enough for requests of more than 16 bytes each
FRAMING_PER_BODY_BYTE: Final = 16  # chunk sizes, extensions and trailers; one-byte chunks have 5
AHEAD = "too much was sent ahead of the answer"


class ConnectionContext(NamedTuple):
    """The values that all connections of a listener share."""

    handler: RequestHandler
    limits: ConnectionLimits
    on_lost: Callable[[ClientConnection], None]
    proxies: TrustedProxies
    loop: asyncio.AbstractEventLoop


class ClientConnection(ClientSender):
    """One connection of `client`, or of the clients of a trusted proxy. `_current` is the exchange being answered,
    `_reading` the last one begun: they differ when the client pipelines.
    """

    task: asyncio.Task[None]  # runs `serve`
    __deletable__ = ("_parser",)

    def __init__(self, context: ConnectionContext, client: str, *, proxied: bool = False) -> None:
        super().__init__(context.loop, context.limits)
        self.client = client
        self.made = False  # false until TLS has been agreed on
        self.proxied = proxied
        self._context = context
        self._parser = RequestParser(self)
        self._current: ClientExchange | None = None
        self._reading: ClientExchange | None = None
        self._queue: deque[ClientExchange] = deque()
        self._next: asyncio.Future[None] | None = None  # the task waits for a request
        self._read_paused = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = True
        self._idle = True  # between requests: nothing of the next one has arrived
        self._head_bytes = 0  # read since the head began, including a little of the previous request
        self._read_bytes = 0  # by the current read
        self._slice_bytes = 0  # the part of the current read that is being parsed
        self._body_left = 0  # bytes of the body still to arrive; below 0: unknown
        self._fault: UnfitRequest | None = None  # follows the requests that are still to be answered
        self._framing_bytes = 0  # read since the head ended, less the body
        self._body_due: float | None = None  # when a body at the lowest rate, after the grace, would have arrived
        self._read_ahead = bytearray()  # received before the current request was answered

    # reading

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.made = True
        transport.set_write_buffer_limits(HIGH_WATER_BYTES)  # TLS would have eight times as much
        self._timer.set(self._limits.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        self._context.on_lost(self)
        if self._current is not None:
            self._current.on_disconnect()
        self._closing = True
        self._timer.close()
        self._stall_timer.close()
        self._queue.clear()
        self._read_ahead.clear()
        self.write_paused = False
        self._wake()
        del self._parser  # without a reference cycle everything is freed at once, not by a later garbage collection
        self._reading = None

    def eof_received(self) -> None:
        self.close()  # the client may never read what was sent

    def data_received(self, data: bytes) -> None:
        if self._closing or self._fault is not None:
            return
        if not self._parses:
            self._keep_for_later(data)
            return
        self._read_bytes = size = len(data)
        began = self._in_head and self._idle
        try:
            if size <= SLICE_BYTES:
                self._feed(data)
            else:
                self._feed_slices(memoryview(data))
        except (httptools.HttpParserError, UnfitRequest) as error:
            self._close_with(self._parser.find_fault(error))
            return
        self._after_read(began)

    @property
    def _parses(self) -> bool:
        """True while received bytes are parsed: a request is awaited, or the current one is incomplete."""
        current = self._current
        return current is None or (current.arriving and current is self._reading)

    def _feed(self, data: bytes | memoryview) -> None:
        """Parse `data`. Raises `HttpParserError` and `UnfitRequest`."""
        self._slice_bytes = size = len(data)
        if self._in_head:
            self._idle = False
            self._head_bytes += size
        else:
            self._framing_bytes += size
        self._parser.feed(data)
        self._check_size()

    def _feed_slices(self, data: memoryview) -> None:
        """Parse `data` in slices until the current request is whole, so that few waiting requests are begun; keep
        the rest. Raises `HttpParserError` and `UnfitRequest`.
        """
        at = 0
        while at < len(data):
            if not self._parses:
                self._keep_for_later(data[at:])
                return
            size = SLICE_BYTES
            if not self._in_head:
                size = max(size, self._body_left) if self._body_left >= 0 else CHUNKED_BYTES
            self._feed(data[at : at + size])
            at += size

    def _after_read(self, began: bool) -> None:
        """Set the deadline for what is still to arrive; stop reading while nobody reads the body."""
        reading = self._reading
        if self._in_head or reading is None:
            if self._current is not None:
                self._timer.clear()
            elif began:
                self._timer.set(self._limits.header_timeout_s)
        elif reading.complete or reading.gone:
            return
        elif self._current is not None and reading is not self._current:
            self._timer.clear()  # until this request's turn
        elif not reading.reader_waits and reading.buffered > HIGH_WATER_BYTES:  # now the router causes the pause
            self._pause_reading()
            self._timer.clear()
            self._body_due = None
        else:
            reading.wake()
            self._expect_body()

    def _expect_body(self) -> None:
        """Set the deadline for more of the body. Each byte postpones the deadline by the time that it takes at
        `MIN_BODY_RATE`, up to the grace from now: a client that sent much at first may not trickle for long.
        """
        limits, now = self._limits, self._context.loop.time()
        latest = now + limits.body_grace_s
        due = latest if self._body_due is None else min(self._body_due + self._read_bytes / MIN_BODY_RATE, latest)
        self._body_due = due
        self._timer.set(min(due - now, limits.body_idle_timeout_s))

    def _keep_for_later(self, data: bytes | memoryview) -> None:
        """Keep what follows the current request, and read on while it is little, to notice a disconnect."""
        self._read_ahead += data
        if len(self._read_ahead) > AHEAD_BYTES:
            self._pause_reading()

    def _parse_ahead(self) -> None:
        """Parse the kept data, up to the request whose turn it is."""
        if self._read_ahead and self._parses:
            ahead, self._read_ahead = self._read_ahead, bytearray()
            self.data_received(bytes(ahead))
        if len(self._read_ahead) <= AHEAD_BYTES:
            self._resume_reading()

    def _check_size(self) -> None:
        if self._in_head:
            check_begun(self._head_bytes, self._headers, self._limits.header_bytes)
        elif self._framing_bytes > self._limits.header_bytes:
            raise UnfitRequest(400, "the framing of the body is larger than the body")

    def resume_body(self) -> None:
        """Read more of the body."""
        if self._read_paused:
            if not self._in_head:
                self._expect_body()
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
        self._head_bytes = self._slice_bytes

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are not part of the request
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin an exchange. Raises `UnfitRequest` when too much is pipelined."""
        if self._head_bytes > self._limits.header_bytes:  # the excess may be what followed the head
            check_begun(measure_head(self._url, self._headers), self._headers, self._limits.header_bytes)
        if (head := self._parser.read_head(self._url, self._headers)) is None:
            return
        exchange = self._reading = ClientExchange(self, head)
        exchange.keep_alive = exchange.keep_alive and not self._limits.requests_last
        self._in_head = False
        self._framing_bytes = 0
        self._body_due = None
        length = head.fields.get(b"content-length")
        self._body_left = -1 if length is None else int(length)
        self._headers = []
        if self._current is None:
            self._current = exchange
            self._wake()
        elif len(self._queue) < MAX_PIPELINED:
            self._queue.append(exchange)
        else:
            raise UnfitRequest(400, AHEAD)

    def on_body(self, body: bytes) -> None:
        reading = self._reading
        assert reading is not None
        self._framing_bytes -= len(body) * (1 + FRAMING_PER_BODY_BYTE)
        self._body_left -= len(body)
        if not reading.complete and not reading.gone:
            reading.pieces.append(body)
            reading.buffered += len(body)

    def on_message_complete(self) -> None:
        if self._parser.repeats:
            return
        reading = self._reading
        assert reading is not None
        self._in_head = True
        self._head_bytes = 0
        reading.arriving = False
        if reading.complete and reading is not self._current:
            self._go_idle()
        else:
            reading.wake()

    # answering one request after another

    def _wake(self) -> None:
        if self._next is not None and not self._next.done():
            self._next.set_result(None)
        self._wake_writer()

    async def serve(self) -> None:
        """Answer the requests of this connection until it closes."""
        while not self._closing:
            if self.write_paused:  # a client that does not read is not served
                await self.drain()
            elif self._current is not None:
                await self._answer(self._current)
            else:
                self._next = self._context.loop.create_future()
                await self._next

    async def _answer(self, exchange: ClientExchange) -> None:
        handler, failed = self._context.handler, False
        try:
            await handler.answer(exchange)
        except Exception:
            log.exception("%s %s failed", exchange.method, exchange.path)
            failed = True
        if failed or not (exchange.complete or exchange.gone):
            exchange.fail(*handler.on_crash(exchange))
        self._after_answer()

    def _after_answer(self) -> None:
        self._current = None
        if self._closing:
            return
        if self._queue:
            self._current = self._queue.popleft()
            if self._current.arriving:
                self._read_bytes = 0
                self._expect_body()
        elif self._fault is not None:
            self._close_with(self._fault)
            return
        elif self._reading is not None and self._reading.arriving:
            self._reading.pieces.clear()
            self._timer.set(self._limits.header_timeout_s)  # for the whole rest of the body
        else:
            self._go_idle()
        if self._read_ahead or self._read_paused:
            self._parse_ahead()

    def _go_idle(self) -> None:
        """Wait for the next request, part of which may have arrived already."""
        self._idle = True
        self._reading = None
        self._timer.set(self._limits.keepalive_s)

    def find_client(self, headers: Headers) -> str:
        """Return the client that a request with `headers` is counted for."""
        named = self._context.proxies.find_client(headers) if self.proxied else None
        return named or self.client

    # closing

    def _close_with(self, refusal: UnfitRequest) -> None:
        """Answer the requests before the faulty one, then send an error and close (RFC 9112 9.3.2)."""
        current = self._current
        if current is not None and not (current.arriving and current is self._reading):
            if self._queue and self._queue[-1].arriving:
                self._queue.pop()
            self._fault = refusal
            self._timer.clear()
            self._read_ahead.clear()
            self._resume_reading()  # what still arrives is discarded, but a disconnect is noticed
            return
        if current is None:
            self._context.handler.on_unfit(refusal.status)
        else:
            current.on_disconnect()
        if current is not None and current.started:
            self.close()
        else:
            self.transport.write(render_refusal(refusal))
            self._linger()

    def _on_deadline(self) -> None:
        if self._closing or self._idle or (self._current is None and not self._in_head):
            self.close()
        else:
            self._close_with(UnfitRequest(408, "the request did not arrive in time"))

    def retire(self, limits: ConnectionLimits) -> None:
        """Make the next answer the last. An answer that has begun cannot announce that: another may follow."""
        self._limits = limits
        last = self._queue[-1] if self._queue else self._current
        if last is not None and not last.started:
            last.keep_alive = False
        elif last is None and self._idle and self.made:
            self._timer.set(limits.keepalive_s)

    def shutdown(self) -> None:
        """Begin no more requests; the exchange that is running may end."""
        self._queue.clear()
        if self._current is not None:
            self._current.keep_alive = False
        elif self.made:
            self.close()
        else:
            self.task.cancel()

    def expire(self) -> None:
        """Stop waiting for the answer: see `ClientExchange.expire`."""
        if self._current is not None:
            self._current.expire()
        elif self.made:
            self.close()
