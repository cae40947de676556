"""One connection to an engine, carrying one exchange at a time.

llhttp parses strictly; what it lets pass and would still leave two readers of the stream in disagreement is refused
here: a transfer coding other than `chunked`, an upgrade, bytes that nobody asked for. After any of these, and after
whatever did not end cleanly, the connection is not used again.

The reader pulls, or has it poured: `more()` gives what has arrived since, at once if something has; `pour()` hands each
piece on in the very turn of the loop in which it came, which for a stream's chunks saves a future and a task's wake-up
each. Nothing is read from the socket while more than `HIGH_WATER_BYTES` wait to be pulled, or while whoever is poured
to has had enough, so a client that stops reading stops its engine, and not our memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from enum import Enum

import httptools

from router.proxy.headers import Headers
from router.proxy.timer import DeadlineTimer

HIGH_WATER_BYTES = 64 * 1024
JOINED_BYTES = 16 * 1024  # up to here copying a body to its head is cheaper than a write of two pieces

Take = Callable[[bytes, bool], bool]
"""Takes a piece of an answer, and whether it is the last one. True: enough for now."""


class ExchangeFailure(Enum):
    """Why an exchange ended before its answer was whole."""

    CLOSED = "the engine closed the connection"
    MALFORMED = "the engine's answer is not valid HTTP"
    LATE = "the engine was silent for too long"


class EngineConnection(asyncio.Protocol):
    """`retired` is called once, when the connection is lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, retired: Callable[[EngineConnection], None]) -> None:
        self._loop = loop
        self._retired = retired
        self._timer = DeadlineTimer(loop, self._late)
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._paused = False
        self._busy = False
        self._clean = False  # may carry another exchange
        self._idle_s = 0.0
        self.connect_s = 0.0  # what it took to connect, for the exchange that had to wait for it
        self._reset("GET")

    def _reset(self, method: str) -> None:
        self.status = 0
        self.headers: Headers = []
        self._collected: Headers = []
        self.silent = True  # not one byte of the answer has come
        self.complete = False
        self.trouble: ExchangeFailure | None = None
        self._bodiless = method == "HEAD"
        self._until_close = False
        self._pieces: list[bytes] = []
        self._waiting_bytes = 0
        self._take: Take | None = None

    # What the exchange's owner calls

    def send(self, method: str, head: bytes, body: bytes, first_byte_s: float, idle_s: float) -> None:
        """Sends a request, in one system call; a large body is not copied for that."""
        assert self._transport is not None
        self._reset(method)
        self._busy = True
        self._clean = False
        self._idle_s = idle_s
        self._timer.set(first_byte_s)
        if len(body) <= JOINED_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    async def begun(self) -> bool:
        """Waits for the first byte of the body, or the answer's end: `status` and `headers` are valid then. False:
        there is `trouble` instead.
        """
        if not self._over and not self._pieces:
            await self._news()
        return bool(self._pieces) or self.complete

    async def more(self) -> bytes:
        """Body bytes as they arrive, never empty; b"" when there are no more: `complete`, or `trouble` says why."""
        if not self._over and not self._pieces:
            await self._news()
        data = self._pull()
        self._resume()
        return data

    async def pour(self, take: Take) -> bool:
        """Hands everything on to `take` as it arrives. False: there is no more, `complete` or `trouble` says why. True:
        `take` had enough, and nothing is read from the socket until this is called again.
        """
        self._resume()
        if self._pieces:
            self._hand_on(take)
        self._take = take
        try:
            while not self._over and not self._paused:
                await self._news()
        finally:
            self._take = None
        if self._pieces:  # what came before the trouble
            take(self._pull(), self.complete)
        return not self._over

    def _news(self) -> asyncio.Future[None]:
        self._waiter = waiter = self._loop.create_future()
        return waiter

    @property
    def _over(self) -> bool:
        return self.complete or self.trouble is not None

    def _hand_on(self, take: Take) -> None:
        if take(self._pull(), self.complete) and not self.complete:
            self._pause()

    def _pull(self) -> bytes:
        pieces, self._pieces = self._pieces, []
        self._waiting_bytes = 0
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    @property
    def drained(self) -> bool:
        """The answer is whole and all of it was pulled."""
        return self.complete and not self._pieces

    @property
    def stale(self) -> bool:
        """The engine closed the connection without a byte of answer: when it had been idle, it just crossed us."""
        return self.silent and self.trouble is ExchangeFailure.CLOSED

    def end(self) -> bool:
        """The owner is done. True: it can be used again; else it was closed, which aborts the engine's work."""
        self._busy = False
        self._timer.off()
        transport = self._transport
        if transport is None:
            return False
        if self._clean and not self._pieces and not transport.get_write_buffer_size() and not transport.is_closing():
            return True
        transport.abort()
        return False

    def rest(self, seconds: float) -> None:
        """Idle from now on, for at most `seconds`."""
        self.connect_s = 0.0
        self._timer.set(seconds)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # What the loop calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._busy:  # an answer to no question
            self.close()
            return
        self.silent = False
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail(ExchangeFailure.MALFORMED)
            return
        came = bool(self._pieces)
        if came and self._take is not None:
            self._hand_on(self._take)
        elif self._waiting_bytes > HIGH_WATER_BYTES:
            self._pause()
        if self.complete:
            self._timer.off()
            self._wake()
        elif came:
            if not self._paused:
                self._timer.set(self._idle_s)
            if self._paused or self._take is None:
                self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._timer.close()
        if self._busy and not self.complete:
            if self._until_close and exc is None and self.trouble is None:
                self.complete = True
            else:
                self.trouble = self.trouble or ExchangeFailure.CLOSED
            self._wake()
        self._retired(self)

    # What the parser calls

    def on_message_begin(self) -> None:
        if self.complete:
            raise httptools.HttpParserError("a second answer to one request")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._collected.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.headers, self._collected = self._collected, []  # what is collected from now on are trailers: dropped
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
        self._pieces.append(body)
        self._waiting_bytes += len(body)

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue, 103 Early Hints: the answer is still to come
            return
        self.complete = True
        self._clean = self._parser.should_keep_alive()

    # Trouble and backpressure

    def _late(self) -> None:
        if self._busy:
            self._fail(ExchangeFailure.LATE)
        else:
            self.close()

    def _fail(self, trouble: ExchangeFailure) -> None:
        self._clean = False
        if not self.complete:  # what comes after a whole answer spoils the connection, not the answer
            self.trouble = trouble
        self._wake()
        self.close()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _pause(self) -> None:
        """Silence is now of our making, so the idle deadline rests too."""
        if not self._paused and self._transport is not None and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()
            self._timer.off()

    def _resume(self) -> None:
        if not self._paused:
            return
        self._paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._timer.set(self._idle_s)
