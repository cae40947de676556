"""A small HTTP client on the simulated network: one request and its answer on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import httptools
import msgspec

DONE = b"data: [DONE]\n\n"


class HttpReply(NamedTuple):
    """What arrived of an answer. `status` is None without a head; `whole`: its end arrived."""

    status: int | None
    headers: dict[str, str]
    body: bytes
    whole: bool

    @property
    def record(self) -> str | None:
        """The id of the router's record of the request; None if no head arrived."""
        return self.headers.get("x-warmroute-record")

    def error(self) -> str | None:
        """Return the code of the error that the answer ends with; None: it reports none."""
        if self.status is not None and self.status >= 400:
            return str(msgspec.json.decode(self.body)["error"]["code"]) if self.whole else None
        if not self.is_stream:
            return None
        last = next((event for event in reversed(self._events()) if event != "[DONE]"), None)
        error = None if last is None else msgspec.json.decode(last).get("error")
        return None if error is None else str(error["code"])

    @property
    def is_stream(self) -> bool:
        return self.headers.get("content-type", "").startswith("text/event-stream")

    @property
    def finished(self) -> bool:
        """True if the answer is whole and says so itself."""
        return self.whole and self.status == 200 and (not self.is_stream or self.body.endswith(DONE))

    def chunks(self) -> list[dict[str, Any]]:
        """Return the JSON objects of the answer: the chunks of a stream, or the one body."""
        if not self.is_stream:
            return [msgspec.json.decode(self.body)] if self.whole else []
        return [msgspec.json.decode(event) for event in self._events() if event != "[DONE]"]

    def _events(self) -> list[str]:
        return [part[6:].decode() for part in self.body.split(b"\n\n")[:-1] if part.startswith(b"data: ")]


class _Exchange(asyncio.Protocol):
    def __init__(self, request: bytes) -> None:
        self._request = request
        self._parser = httptools.HttpResponseParser(self)
        self.status: int | None = None
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.whole = False
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode().lower()] = value.decode()

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.whole = True
        self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


async def post(
    host: str, port: int, path: str, body: bytes, headers: Mapping[str, str], *, leave_after_s: float
) -> HttpReply:
    """Send a request and return what arrived of its answer. It hangs up after `leave_after_s`."""
    sent = {"host": host, "content-type": "application/json", "content-length": str(len(body)), **headers}
    head = "\r\n".join([f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in sent.items()), "", ""])
    exchange = _Exchange(head.encode() + body)
    transport = None
    try:
        async with asyncio.timeout(leave_after_s):
            transport, _ = await asyncio.get_running_loop().create_connection(lambda: exchange, host, port)
            await exchange.over
    except (TimeoutError, OSError):
        pass  # what has arrived is the answer
    finally:
        if transport is not None:
            transport.abort()
    return HttpReply(exchange.status, exchange.headers, bytes(exchange.body), exchange.whole)
