"""One request of a client and its answer, as ASGI sees them.

uvicorn's cycle with less work and more care: the body stays in the pieces it came in (a bytearray would copy it twice
more), head and first body bytes go out in one system call, HTTP/1.0 gets no chunks, and an answer given to a client
that still waits for `100 Continue` closes the connection. It is also the `Wire` (`proxy/call.py`) for those who must
know of the client's loss at once. Knows its connection only by what it needs from it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from router.proxy.call import Message

DISCONNECT: Message = {"type": "http.disconnect"}


class Connection(Protocol):
    """What an exchange needs of the connection it runs on."""

    transport: asyncio.Transport
    flow: FlowControl
    logger: logging.Logger
    access_logger: logging.Logger
    expect_100_continue: bool

    def read_on(self) -> None:
        """More of the body is wanted."""

    def on_response_complete(self) -> None:
        """The answer is whole."""


class Exchange(RequestResponseCycle):
    """`pieces` and `buffered` are filled by the connection, and emptied as the application asks for the body."""

    def __init__(self, connection: Connection, scope: Any, keep_alive: bool) -> None:
        super().__init__(
            scope=scope,
            transport=connection.transport,
            flow=connection.flow,
            logger=connection.logger,
            access_logger=connection.access_logger,
            access_log=False,
            default_headers=[],
            message_event=asyncio.Event(),
            expect_100_continue=connection.expect_100_continue and scope["http_version"] == "1.1",
            keep_alive=keep_alive,
            on_response=connection.on_response_complete,
        )
        self.pieces: list[bytes] = []
        self.buffered = 0
        self._connection = connection
        self._body_told = False
        self._bodiless = False
        self._head = b""
        self._gone: Callable[[], None] | None = None

    # Wire

    def when_gone(self, callback: Callable[[], None] | None) -> None:
        self._gone = callback
        if callback is not None and self.disconnected:
            callback()

    def cut(self) -> None:
        """A length or chunking shows what is missing; an answer that ends with the connection needs a reset."""
        self.disconnected = True
        if self.chunked_encoding is None:
            self.transport.abort()
        else:
            self.transport.close()

    def lost(self) -> None:
        """The client is gone."""
        if self.response_complete or self.disconnected:
            return
        self.disconnected = True
        self.message_event.set()
        if self._gone is not None:
            self._gone()

    # ASGI

    async def run_asgi(self, app: Any) -> None:
        """The scope knows its exchange, and the exchange its scope: parted at the end, both go at once, not with the
        collector's next round, which would find thousands of them.
        """
        try:
            await super().run_asgi(app)
        finally:
            self.scope.pop("extensions", None)

    async def receive(self) -> Any:
        if self.waiting_for_100_continue and not self.transport.is_closing():
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self.waiting_for_100_continue = False
        while not self.disconnected and not self.response_complete:
            if not self._body_told and (self.pieces or not self.more_body):
                return self._body_message()
            self._connection.read_on()
            self.message_event.clear()
            await self.message_event.wait()
        return DISCONNECT

    def _body_message(self) -> Message:
        pieces, self.pieces = self.pieces, []
        self.buffered = 0
        self._body_told = not self.more_body
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Any) -> None:
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._start(message["status"], message.get("headers", ()))
        elif not self.response_complete:
            self._body(message.get("body", b""), message.get("more_body", False))
        else:
            raise RuntimeError("the answer is already complete")

    def _start(self, status: int, headers: Any) -> None:
        """The head goes out with the first of the body: a write is a system call.

        One check for line breaks on the whole of it, where uvicorn runs two patterns per header.
        """
        self.response_started = True
        if self.waiting_for_100_continue:  # the client may or may not send its body now: not to be guessed
            self.keep_alive = False
        head = [STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status]
        for name, value in headers:
            name = name.lower()
            if name == b"content-length":
                self.chunked_encoding = False
                self.expected_content_length = int(value)
            elif name == b"connection":
                self.keep_alive = self.keep_alive and value.lower() != b"close"
                continue
            head.append(b"%b: %b\r\n" % (name, value))
        self._bodiless = self.scope["method"] == "HEAD" or status in (204, 304)
        if self.chunked_encoding is None and not self._bodiless:
            if self.scope["http_version"] == "1.1":
                self.chunked_encoding = True
                head.append(b"transfer-encoding: chunked\r\n")
            else:
                self.keep_alive = False
        if self._bodiless:
            self.expected_content_length = 0
        if not self.keep_alive:
            head.append(b"connection: close\r\n")
        block = b"".join(head)
        if block.count(b"\n") != len(head) or block.count(b"\r") != len(head):
            raise RuntimeError("a line break inside a response header")
        self._head = block + b"\r\n"

    def _body(self, body: bytes, more: bool) -> None:
        if self._bodiless:
            body = b""
        head, self._head = self._head, b""
        if self.chunked_encoding:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            self.transport.write(b"%b%b%b" % (head, chunk, b"" if more else b"0\r\n\r\n"))
        else:
            if self.chunked_encoding is False:
                self.expected_content_length -= len(body)
            self.transport.writelines((head, body))
        if not more:
            self._complete()

    def _complete(self) -> None:
        if self.expected_content_length != 0:
            raise RuntimeError("the answer's body is not as long as its Content-Length")
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()
