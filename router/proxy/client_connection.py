"""The server side of one client connection: llhttp parses, and this module limits what a client may do.

A cap on the head's size; deadlines for the head, for the body, for idle keep-alive and for a client that stops reading
(lazy timers, set once per read); refusal of everything that two HTTP parsers could read differently; limits on
pipelining and on chunk framing; the exchange learns at once that its client disconnected. One task answers a
connection's requests, one after another, and none before the client has read what it was sent. An answer that needs
none of the request's body may come early: the rest is read and thrown away, for a limited time. The tests list what
llhttp itself refuses.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

import httptools

from router.proxy.call import Headers
from router.proxy.client_address import TrustedProxies
from router.proxy.client_exchange import ClientExchange
from router.proxy.connection_limits import MIN_BODY_RATE, ConnectionLimits
from router.proxy.request_head import UnfitRequest, check_begun, measure_head, render_refusal
from router.proxy.request_parser import RequestParser
from router.proxy.timer import DeadlineTimer

log = logging.getLogger("warmroute.web")

HIGH_WATER_BYTES: Final = 64 * 1024
AHEAD_BYTES: Final = 16 * 1024  # of further requests, before the current one is answered
MAX_PIPELINED: Final = 8  # requests of one client within one read
FRAMING_PER_BODY_BYTE: Final = 16  # chunk sizes, extensions and trailers; one-byte chunks have 5
LINGER_S = 1.0
AHEAD = "too much was sent ahead of the answer"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds


class RequestHandler(Protocol):
    """Answers requests."""

    async def answer(self, exchange: ClientExchange) -> None:
        """Answer `exchange`; an exception becomes a 500."""


class ConnectionContext(NamedTuple):
    """The things that all connections of a listener share."""

    handler: RequestHandler
    limits: ConnectionLimits
    on_lost: Callable[[ClientConnection], None]
    proxies: TrustedProxies
    loop: asyncio.AbstractEventLoop


class ClientConnection(asyncio.Protocol):
    """One connection of `client`, or of the clients of a trusted proxy. `_current` is the exchange being answered,
    `_reading` the last one begun: they differ when the client pipelines.
    """

    transport: asyncio.Transport
    task: asyncio.Task[None]  # which runs `serve`
    __deletable__ = ("_parser",)

    def __init__(self, context: ConnectionContext, client: str, *, proxied: bool = False) -> None:
        self.client = client
        self.made = False  # false until TLS has been agreed on
        self.proxied = proxied
        self._context = context
        self._limits = context.limits
        self._timer = DeadlineTimer(context.loop, self._on_deadline)  # for what the client sends
        self._stall_timer = DeadlineTimer(context.loop, self.reset)  # for what it reads
        self._parser = RequestParser(self)
        self._current: ClientExchange | None = None
        self._reading: ClientExchange | None = None
        self._queue: deque[ClientExchange] = deque()
        self._next: asyncio.Future[None] | None = None  # the task waits for a request
        self._writable: asyncio.Future[None] | None = None  # it waits for the client to read
        self.write_paused = False
        self._read_paused = False
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._in_head = True
        self._closing = False  # nothing more is read or served
        self._idle = True  # between requests: nothing of the next one has arrived
        self._head_bytes = 0  # read since the head began, a little of the request before included
        self._read_bytes = 0  # by the current read
        self._framing_bytes = 0  # read since the head ended, less the body
        self._body_due: float | None = None  # when a body at the lowest rate, after the grace, would be here
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
        del self._parser  # without a cycle of references all is freed at once, not by some garbage collection
        self._reading = None

    def eof_received(self) -> None:
        self.close()  # what was sent may never be read

    def data_received(self, data: bytes) -> None:
        if self._closing:
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
            self._parser.feed(data)
            self._check_size()
        except (httptools.HttpParserError, UnfitRequest) as error:
            self._close_with(self._parser.find_fault(error))
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
        elif reading is not self._current and reading.buffered > AHEAD_BYTES:
            self._close_with(UnfitRequest(400, AHEAD))
        elif not reading.reader_waits and reading.buffered > HIGH_WATER_BYTES:  # now the pause is the router's own
            self._pause_reading()
            self._timer.clear()
            self._body_due = None
        else:
            reading.wake()
            self._expect_body()

    def _expect_body(self) -> None:
        """Set the deadline for more of the body. Each byte postpones it by what it takes at `MIN_BODY_RATE`, up to the
        grace from now: who sent much at first may not trickle for long.
        """
        limits, now = self._limits, self._context.loop.time()
        latest = now + limits.body_grace_s
        due = latest if self._body_due is None else min(self._body_due + self._read_bytes / MIN_BODY_RATE, latest)
        self._body_due = due
        self._timer.set(min(due - now, limits.body_idle_timeout_s))

    def _keep_for_later(self, data: bytes) -> None:
        """Keep the next request until this answer ends; reading goes on, so that a disconnect is still seen."""
        self._read_ahead += data
        if len(self._read_ahead) > AHEAD_BYTES:
            if self._current is not None and self._current.complete:  # it could not know that the handler still runs
                self._pause_reading()
            else:
                self._close_with(UnfitRequest(400, AHEAD))

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
        self._head_bytes = self._read_bytes

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers are not part of the request
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Begin an exchange. Raises `UnfitRequest` when too much is pipelined."""
        if self._head_bytes > self._limits.header_bytes:  # or it is what came behind the head
            check_begun(measure_head(self._url, self._headers), self._headers, self._limits.header_bytes)
        if (head := self._parser.read_head(self._url, self._headers)) is None:
            return
        exchange = self._reading = ClientExchange(self, head)
        exchange.keep_alive = exchange.keep_alive and not self._limits.requests_last
        self._in_head = False
        self._framing_bytes = 0
        self._body_due = None
        self._headers = []
        if self._current is None:
            self._current = exchange
            self._wake()
        elif len(self._queue) < MAX_PIPELINED and self._read_bytes <= AHEAD_BYTES:
            self._queue.append(exchange)
        else:
            raise UnfitRequest(400, AHEAD)

    def on_body(self, body: bytes) -> None:
        reading = self._reading
        assert reading is not None
        self._framing_bytes -= len(body) * (1 + FRAMING_PER_BODY_BYTE)
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

    # from one request to the next

    def _wake(self) -> None:
        for waiter in (self._next, self._writable):
            if waiter is not None and not waiter.done():
                waiter.set_result(None)

    async def serve(self) -> None:
        """Answer the requests of this connection until it closes."""
        while not self._closing:
            if self.write_paused:  # nobody is served who does not read
                await self.drain()
            elif self._current is not None:
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
        if self._closing:
            return
        self._resume_reading()
        if self._queue:
            self._current = self._queue.popleft()
        elif self._reading is not None and self._reading.arriving:
            self._reading.pieces.clear()
            self._timer.set(self._limits.header_timeout_s)  # for all that is left of it
        else:
            self._go_idle()

    def _go_idle(self) -> None:
        """Wait for the next request, part of which may be here already."""
        self._idle = True
        self._reading = None
        self._timer.set(self._limits.keepalive_s)
        if self._read_ahead:
            ahead, self._read_ahead = self._read_ahead, bytearray()
            self.data_received(bytes(ahead))

    def find_client(self, headers: Headers) -> str:
        """Return the client that a request with `headers` is counted for."""
        named = self._context.proxies.find_client(headers) if self.proxied else None
        return named or self.client

    # closing

    def _close_with(self, refusal: UnfitRequest) -> None:
        """Close the connection; send an error first unless an answer has started, or is due to an earlier request."""
        current = self._current
        answers = current is None or (current is self._reading and current.arriving and not current.started)
        if current is not None:
            current.on_disconnect()
        if answers:
            self.transport.write(render_refusal(refusal))
            self._linger()
        else:
            self.close()

    def _linger(self) -> None:
        """Send no more, and throw away what still comes for a while: to close before it was read would be a reset, at
        which the client could lose the answer (RFC 9112 9.6). TLS has an end of its own.
        """
        self._closing = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer.set(LINGER_S)
        else:
            self.close()

    def _on_deadline(self) -> None:
        if self._closing or self._idle or (self._current is None and not self._in_head):
            self.close()
        else:
            self._close_with(UnfitRequest(408, "the request did not arrive in time"))

    def close(self) -> None:
        """Close once the client has read what was sent, or has read nothing for `stall_timeout_s`."""
        self._closing = True
        self._timer.clear()
        if not self.write_paused and self.transport.get_write_buffer_size():
            self._stall_timer.set(self._limits.stall_timeout_s)
        self.transport.close()

    def reset(self) -> None:
        """Cut the connection off with a TCP reset: a plain end is how an answer without a length ends, and the system
        would keep trying to deliver what the client does not read.
        """
        if (tcp := self.transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.transport.abort()

    def retire(self, limits: ConnectionLimits) -> None:
        """Let the next answer be the last. One that has begun could not say so: another may follow it."""
        self._limits = limits
        last = self._queue[-1] if self._queue else self._current
        if last is not None and not last.started:
            last.keep_alive = False
        elif last is None and self._idle and self.made:
            self._timer.set(limits.keepalive_s)

    def shutdown(self) -> None:
        """Begin no more requests; the one being answered may end."""
        self._queue.clear()
        if self._current is not None:
            self._current.keep_alive = False
        elif self.made:
            self.close()
        else:
            self.task.cancel()

    # backpressure

    def pause_writing(self) -> None:
        self.write_paused = True
        self._stall_timer.set(self._limits.stall_timeout_s)

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._closing:
            self._stall_timer.set(self._limits.stall_timeout_s)  # for what is left
        else:
            self._stall_timer.clear()
        self._wake()

    async def drain(self) -> None:
        while self.write_paused:
            self._writable = self._context.loop.create_future()
            await self._writable
