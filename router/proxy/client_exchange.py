"""One request of a client and its answer on an HTTP/1 connection: a `ClientRequest` (`proxy/call.py`).

The body is kept in the pieces in which it arrived until it is read. The answer is framed here (length, chunks, or
the end of the connection for HTTP/1.0) and is written straight to the transport, which gathers all writes of one
turn of the loop; nothing is copied in between. An answer to a client that still waits for `100 Continue` closes the
connection.
"""

from __future__ import annotations

import asyncio
from typing import Final, Protocol

from router.proxy.call import BodyBudget, Headers
from router.proxy.request_head import STATUS_LINES, RequestHead
from router.proxy.watched_exchange import PIECE_BYTES, WatchedExchange, check_body_size

ALLOW_ORIGIN: Final = b"access-control-allow-origin"
CHUNK_SIZES: Final = [b"%x\r\n" % size for size in range(1024)]  # most chunks of a stream are this small


class ExchangeTransport(Protocol):
    """The connection of an exchange."""

    transport: asyncio.Transport
    task: asyncio.Task[None]  # answers its requests
    write_paused: bool
    proxied: bool  # by a trusted proxy

    def find_client(self, headers: Headers) -> str:
        """Return the client, by its address, that a request with these headers is counted for."""

    async def drain(self) -> None:
        """Wait until the client has read enough of what was sent, or has disconnected."""

    def resume_body(self) -> None:
        """Read more of the body."""

    def close(self) -> None:
        """Close once the client has read what was sent, or has read nothing for too long."""

    def reset(self) -> None:
        """Cut the connection off, so that the client notices."""


class ClientExchange(WatchedExchange):
    """One exchange. The connection fills `pieces` and `buffered`, which are emptied as the body is read. The
    exchange is `gone` when the client disconnected before the answer was complete, or the answer was aborted.
    """

    __slots__ = (
        "_awaits_continue",
        "_bodiless",
        "_chunked",
        "_connection",
        "_head",
        "_http_1_1",
        "_remaining",
        "_waiter",
        "arriving",
        "buffered",
        "complete",
        "keep_alive",
        "pieces",
    )

    def __init__(self, connection: ExchangeTransport, head: RequestHead) -> None:
        super().__init__()
        self.method = head.method
        self.path = head.path
        self.target = head.target
        self.headers = head.headers
        self.fields = head.fields
        self._http_1_1 = head.http_1_1
        self.keep_alive = head.keep_alive
        self.recorded = False
        self.pieces: list[bytes] = []
        self.buffered = 0
        self.arriving = True  # the body has not arrived completely
        self.started = False
        self.complete = False  # True: the whole answer was written
        self._connection = connection
        self._awaits_continue = b"expect" in self.fields and self._expects()
        self._waiter: asyncio.Future[None] | None = None
        self._head = b""
        self._chunked = False
        self._bodiless = False
        self._remaining: int | None = None  # bytes still to be sent of an answer that declared its length

    @property
    def http_version(self) -> str:
        return "1.1" if self._http_1_1 else "1.0"

    @property
    def sender(self) -> str:
        return self.client or self._connection.find_client(self.headers)

    @property
    def proxied(self) -> bool:
        return self._connection.proxied

    @property
    def encrypted(self) -> bool:
        return self._connection.transport.get_extra_info("sslcontext") is not None

    def _expects(self) -> bool:
        return self._http_1_1 and self.fields[b"expect"].lower() == b"100-continue"

    # watching the client

    def _find_task(self) -> asyncio.Task[None]:
        return self._connection.task

    def on_disconnect(self) -> None:
        if not self.complete and not self.gone:
            self._leave()
            self._cancel()
            self.wake()

    def _leave(self) -> None:
        self.gone = True
        self.last_events = None  # refers to this exchange: memory is freed at once only without cycles

    def expire(self) -> None:
        """End the exchange now, because the server is stopping: a stream ends with its last events, a request
        without an answer with 503, any other answer is cut off.
        """
        if self.complete or self.gone:
            return
        self.expired = True
        if not self.started:
            self._cancel()
        elif self.last_events is None:
            self._connection.reset()
        else:
            self.finish(self.last_events())
            self.gone = True  # what the engine still sends is dropped
            self._cancel()

    # the request's body

    async def body(self, limit_bytes: int, budget: BodyBudget) -> bytes:
        if self.arriving and (length := self.fields.get(b"content-length")) is not None:
            check_body_size(int(length), limit_bytes)
        pieces: list[bytes] = []
        size = 0
        while self.pieces or (self.arriving and not self.gone):
            for piece in await self._take():  # joined once, at the end
                size += len(piece)
                check_body_size(size, limit_bytes)
                budget.hold(len(piece) + PIECE_BYTES)
                pieces.append(piece)
        if self.gone:
            await asyncio.sleep(0)  # the cancellation is raised here
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def read(self) -> bytes:
        """Return the part of the body that has arrived since the last call, never empty; `b""` at its end or when
        the client has disconnected.
        """
        pieces = await self._take()
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _take(self) -> list[bytes]:
        while not self.pieces and self.arriving and not self.gone:
            self._request_more()
            await self._wait()
        pieces, self.pieces = self.pieces, []
        self.buffered = 0
        return pieces

    def _request_more(self) -> None:
        if self._awaits_continue:
            self._awaits_continue = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._connection.resume_body()

    @property
    def reader_waits(self) -> bool:
        """True while the reader of the body waits and was not woken."""
        return self._waiter is not None and not self._waiter.done()

    async def wait_end(self) -> None:
        """Wait until the answer is complete, or the client has disconnected."""
        while not self.complete and not self.gone:
            await self._wait()

    def _wait(self) -> asyncio.Future[None]:
        self._waiter = waiter = asyncio.get_running_loop().create_future()
        return waiter

    def wake(self) -> None:
        """Wake the task that waits for the body, or for the end."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # the answer

    def start(self, status: int, headers: Headers) -> None:
        """Begin the answer. Raises `RuntimeError` for a line break in a header, by one check of the whole head."""
        self.started = True
        if self._awaits_continue:  # it is unknown whether the client will send its body now
            self.keep_alive = False
        if self.cross_origin:
            headers = [header for header in headers if header[0] != ALLOW_ORIGIN]
        lines: list[bytes] = []
        length: bytes | None = None
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
            if name == b"content-length":
                length = value
        self._bodiless = self.method == "HEAD" or status in (204, 304)
        if self._bodiless:
            self._remaining = 0
        elif length is not None:
            self._remaining = int(length)
        elif self._http_1_1:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        else:
            self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        block = b"".join(lines)
        if block.count(b"\n") != len(lines) or block.count(b"\r") != len(lines):
            raise RuntimeError("a response header contains a line break")
        status_line = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        self._head = b"%b%b%b\r\n" % (status_line, block, self.own_lines)

    def write(self, data: bytes) -> None:
        if not self.gone and data:
            self._write(data, b"")

    def finish(self, last: bytes = b"") -> None:
        """Send `last` and complete the answer. Raises `RuntimeError` if the body is shorter than declared."""
        if self.gone:
            return
        self._write(last, b"0\r\n\r\n")
        if self._remaining:
            raise RuntimeError("the answer's body is not as long as its Content-Length")
        self.complete = True
        self.last_events = None
        self.wake()
        if not self.keep_alive:
            self._connection.close()

    def _write(self, data: bytes, end: bytes) -> None:
        """Send `data` in one write. `end` terminates the chunks."""
        if self.complete:
            raise RuntimeError("the answer is already complete")
        head, self._head = self._head, b""
        if self._bodiless:
            data = b""
        if self._chunked and data and not (head or end):
            size = len(data)
            begin = CHUNK_SIZES[size] if size < len(CHUNK_SIZES) else b"%x\r\n" % size
            self._connection.transport.write(b"".join((begin, data, b"\r\n")))
            return
        if self._chunked:
            framed = b"%b%x\r\n%b\r\n%b" % (head, len(data), data, end) if data else head + end
            self._connection.transport.write(framed)
            return
        if self._remaining is not None:
            self._remaining -= len(data)
        self._connection.transport.write(head + data if head else data)

    def answer(self, status: int, headers: Headers, body: bytes) -> None:
        self.start(status, [*headers, (b"content-length", b"%d" % len(body))])
        self.finish(body)

    @property
    def write_paused(self) -> bool:
        return self._connection.write_paused

    async def drain(self) -> None:
        await self._connection.drain()

    def fail(self, status: int, headers: Headers, body: bytes) -> None:
        """Send this answer if none has begun, else end the begun answer early."""
        if self.complete or self.gone:
            return
        if self.started:
            self.abort()
        else:
            self.answer(status, headers, body)

    def abort(self) -> None:
        """End the answer early: with a length or chunking the client notices that it is incomplete, without either
        the connection is reset.
        """
        self._leave()
        if self._chunked or self._remaining is not None:
            self._connection.close()
        else:
            self._connection.reset()


class RequestHandler(Protocol):
    """Answers requests."""

    async def answer(self, exchange: ClientExchange) -> None:
        """Answer `exchange`."""

    def on_unfit(self, status: int) -> None:
        """Count a request that the connection refused with this status: invalid HTTP, or too slow."""

    def on_crash(self, exchange: ClientExchange) -> tuple[int, Headers, bytes]:
        """Return status, headers and body of the answer to send where `answer` failed or sent none."""
