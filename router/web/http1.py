"""The server side of one client connection: uvicorn's httptools protocol with the bounds that it lacks.

Added: a cap on the head's size and deadlines for the head, for pauses in the body, for a reader that stops reading and
for idle keep-alive (one lazy timer for all); refusal of everything that two HTTP parsers could read differently; memory
bounds on pipelining and on chunk framing; the loss of the client told at once to whoever asked (`proxy/call.py:Wire`).
An answer that needs none of the request's body may come early: the rest is read and thrown away, for a limited time.

What llhttp already refuses (both lengths, two lengths, folded lines, bare line feeds, ...) is listed by the tests.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from typing import Any, NamedTuple

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from router.proxy.call import EXTENSION
from router.proxy.timer import Timer
from router.web.exchange import Exchange

QUEUED_REQUESTS = 64  # pipelined by one client within one read
FRAMING_PER_BODY_BYTE = 16  # chunk sizes, extensions and trailers; one-byte chunks have 5


class Bounds(NamedTuple):
    header_bytes: int
    header_timeout_s: float
    body_idle_timeout_s: float
    keepalive_s: float
    stall_timeout_s: float  # a client that takes nothing of what was sent for so long is cut


class Unfit(Exception):
    """The request is refused and its connection closed. Raised in parser callbacks, it stops the parser."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ClientConnection(HttpToolsProtocol):
    """`running` is the exchange being answered, `cycle` (uvicorn's word) the last begun: they differ in pipelining."""

    cycle: Exchange

    def __init__(
        self,
        bounds: Bounds,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._bounds = bounds
        self._timer = Timer(self.loop, self._late)
        self.running: Exchange | None = None
        self._in_head = True
        self._idle = True  # between requests: nothing of the next one has come
        self._head_bytes = 0  # read since the head began, a little of the request before included
        self._read_bytes = 0  # by the current read
        self._framing_bytes = 0  # read since the head ended, less the body
        self._held: list[bytes] = []  # read ahead of the answer to the running request
        self._held_bytes = 0

    # Reading

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._timer.set(self._bounds.header_timeout_s)

    def connection_lost(self, exc: Exception | None) -> None:
        if self.running is not None:
            self.running.lost()
        self._timer.close()
        self.pipeline.clear()
        self._held.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        if self.running is not None and not self.cycle.more_body:
            self._hold(data)
            return
        self._read_bytes = len(data)
        if self._in_head:
            if self._idle:
                self._idle = False
                self._timer.set(self._bounds.header_timeout_s)
            self._head_bytes += len(data)
        else:
            self._framing_bytes += len(data)
        try:
            self.parser.feed_data(data)
            self._check_size()
        except (httptools.HttpParserError, httptools.HttpParserUpgrade, Unfit) as error:
            self._refuse(error)

    def _hold(self, data: bytes) -> None:
        """The next request waits for the end of this answer, but the loss of the client must still be seen: read on."""
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes > HIGH_WATER_LIMIT:
            self.flow.pause_reading()

    def _check_size(self) -> None:
        bounds = self._bounds
        if self._in_head:
            if self._head_bytes > bounds.header_bytes:
                raise Unfit(431, f"the request's head is larger than {bounds.header_bytes} bytes")
        elif self._framing_bytes > bounds.header_bytes:
            raise Unfit(400, "the framing of the body outweighs the body")

    def read_on(self) -> None:
        """The application waits for more of the body."""
        if not self._in_head and self.flow.read_paused:
            self._timer.set(self._bounds.body_idle_timeout_s)
        self.flow.resume_reading()

    # What the parser calls

    def on_message_begin(self) -> None:
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._in_head = True
        self._head_bytes = self._read_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        elif name == b"transfer-encoding" and value.lower() != b"chunked":
            raise Unfit(400, "a transfer coding other than chunked")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        parser = self.parser
        version = parser.get_http_version()
        self._check_head(version)
        self._in_head = False
        self._framing_bytes = 0
        scope = self._scope(version, parser.get_method().decode("ascii"))
        exchange = Exchange(self, scope, version == "1.1" and parser.should_keep_alive())
        scope["extensions"] = {EXTENSION: exchange}
        self.cycle = exchange
        self.headers = []  # what comes now are trailers: not part of the scope
        self._timer.set(self._bounds.body_idle_timeout_s)
        if self.running is None:
            self._run(exchange)
        elif len(self.pipeline) < QUEUED_REQUESTS:
            self.pipeline.appendleft((exchange, self.app))
        else:
            raise Unfit(400, "too many requests sent ahead")

    def _check_head(self, version: str) -> None:
        if version not in ("1.1", "1.0"):
            raise Unfit(400, "this version of HTTP is not spoken here")
        if self.parser.should_upgrade():
            raise Unfit(400, "no upgrade is possible")
        if version == "1.0" and any(name == b"transfer-encoding" for name, _ in self.headers):
            raise Unfit(400, "HTTP/1.0 has no transfer codings")
        if self._head_bytes > self._bounds.header_bytes:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
            if size > self._bounds.header_bytes:
                raise Unfit(431, f"the request's head is larger than {self._bounds.header_bytes} bytes")

    def _scope(self, version: str, method: str) -> Any:
        path, _, query = self.url.partition(b"?")
        if not path.startswith(b"/") or b"#" in self.url:
            url = httptools.parse_url(self.url)
            path, query = url.path or b"/", url.query or b""
        text = path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": method,
            "root_path": "",
            "path": urllib.parse.unquote(text) if "%" in text else text,
            "raw_path": path,
            "query_string": query,
            "headers": self.headers,
            "state": {},
        }

    def on_body(self, body: bytes) -> None:
        exchange = self.cycle
        self._framing_bytes -= len(body) * (1 + FRAMING_PER_BODY_BYTE)
        if exchange.response_complete or exchange.disconnected:
            return
        exchange.pieces.append(body)
        exchange.buffered += len(body)
        if exchange.buffered > HIGH_WATER_LIMIT:  # the pause is ours now, not the client's
            self.flow.pause_reading()
            self._timer.off()
        else:
            self._timer.set(self._bounds.body_idle_timeout_s)
        exchange.message_event.set()

    def on_message_complete(self) -> None:
        exchange = self.cycle
        self._in_head = True
        self._head_bytes = 0
        exchange.more_body = False
        if exchange.response_complete:
            self._rest()
        else:
            self._timer.off()
            exchange.message_event.set()

    # From one request to the next

    def _run(self, exchange: Exchange) -> None:
        self.running = exchange
        self._start_asgi_task(exchange, self.app)

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        self.running = None
        if self.transport.is_closing():
            self._timer.set(self._bounds.stall_timeout_s)  # closes when all is taken, or then
            return
        self.flow.resume_reading()
        if self.pipeline:
            exchange, _ = self.pipeline.pop()
            self._run(exchange)  # type: ignore[arg-type]
        elif self.cycle.more_body:
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
        status = reason.status if isinstance(reason, Unfit) else 400
        message = str(reason) if isinstance(reason, Unfit) else "this is not valid HTTP"
        self._end(status, message)

    def _end(self, status: int, message: str) -> None:
        running = self.running
        if running is None or (running is self.cycle and running.more_body and not running.response_started):
            self.transport.write(_plain_answer(status, message))
        if running is not None:
            running.lost()
        self.transport.close()
        self._timer.set(self._bounds.stall_timeout_s)

    def _late(self) -> None:
        if self.flow.write_paused or self.transport.is_closing():
            self.transport.abort()
        elif self._idle or (self.running is None and not self._in_head):
            self.transport.close()
        else:
            self._end(408, "the request did not arrive in time")

    def pause_writing(self) -> None:
        super().pause_writing()
        self._timer.set(self._bounds.stall_timeout_s)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.running is not None:
            self._timer.off()
        else:
            self._timer.set(self._bounds.keepalive_s)

    def shutdown(self) -> None:
        """The server stops: what runs may end, nothing more is begun."""
        self.pipeline.clear()
        if self.running is None:
            self.transport.close()
        else:
            self.running.keep_alive = False


def _plain_answer(status: int, message: str) -> bytes:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    body = msgspec.json.encode({"error": error})
    return b"%bcontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (
        STATUS_LINE[status],
        len(body),
        body,
    )
