"""A bounded load over kept-alive loopback connections: a number of requests and connections, every answer checked.

Raw protocols again: the load shares two cores with the router that is measured, so it must cost little itself.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import httptools

from router.errors import WarmrouteError
from tests.bench.pieces import Pieces

DEADLINE_S = 120.0


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of load: `requests` in all over `connections`; each answer must have `chunks` pieces of a stream."""

    name: str
    unit: str
    requests: int
    connections: int
    body_bytes: int
    chunks: int = 0

    @property
    def units(self) -> int:
        return self.requests * max(1, self.chunks)

    def shrunk(self, times: int) -> Shape:
        """Return the shape with fewer requests, but at least one per connection."""
        return replace(self, requests=max(self.connections, self.requests // times))

    def body(self, model: str) -> bytes:
        request: dict[str, Any] = {"model": model, "messages": [{"role": "user", "content": ""}]}
        if self.chunks:
            request |= {"stream": True, "max_tokens": self.chunks}
        padding = self.body_bytes - len(json.dumps(request))
        words = "the warm cache remembers what the cold one forgot and "
        request["messages"][0]["content"] = (words * (padding // len(words) + 1))[:padding]
        return json.dumps(request).encode()


class LoadFailed(WarmrouteError):
    """An answer was not as expected."""


class _Left:
    """Counter of requests not yet sent, shared by all connections."""

    def __init__(self, requests: int) -> None:
        self.requests = requests

    def take(self) -> bool:
        self.requests -= 1
        return self.requests >= 0


class _Client(asyncio.Protocol):
    """One connection; `done` is set when it is closed."""

    def __init__(self, request: bytes, chunks: int, left: _Left, done: asyncio.Future[None]) -> None:
        self._request = request
        self._chunks = chunks
        self._left = left
        self._done = done
        self._parser: Any = None
        self._transport: asyncio.Transport | None = None
        self._pieces = Pieces()
        self._failure: LoadFailed | None = LoadFailed("a connection was closed before its answer was whole")

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._failure is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(self._failure)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._pieces.read(body)

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        seen, wanted = self._pieces.seen, max(1, self._chunks)
        if status != 200 or seen != wanted:
            self._finish(LoadFailed(f"status {status} with {seen} of {wanted} pieces"))
            return
        asyncio.get_running_loop().call_soon(self._send)  # not from within the parser that it replaces

    def _send(self) -> None:
        assert self._transport is not None
        if self._transport.is_closing():
            return
        if not self._left.take():
            self._finish(None)
            return
        self._pieces = Pieces()
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(self._request)

    def _finish(self, failure: LoadFailed | None) -> None:
        assert self._transport is not None
        self._failure = failure
        self._transport.close()


async def send(shape: Shape, port: int, model: str, body: bytes | None = None, key: str | None = None) -> None:
    """Send the whole load and wait for every answer. Raises LoadFailed at the first wrong one.

    `body` replaces the body that the shape makes for each request; `key` is an API key.
    """
    body = shape.body(model) if body is None else body
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\nuser-agent: bench\r\naccept: */*\r\n"
    head += "" if key is None else f"authorization: Bearer {key}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    try:
        async with asyncio.timeout(DEADLINE_S):
            await _send(shape, port, head.encode() + body)
    except OSError as trouble:  # TimeoutError is one too
        raise LoadFailed(f"port {port}: {type(trouble).__name__} {trouble}") from None


async def _send(shape: Shape, port: int, request: bytes) -> None:
    left = _Left(shape.requests)
    loop = asyncio.get_running_loop()
    opened: list[asyncio.BaseTransport] = []
    ends: list[asyncio.Future[None]] = []
    try:
        for _ in range(shape.connections):
            done: asyncio.Future[None] = loop.create_future()
            client = partial(_Client, request, shape.chunks, left, done)
            opened.append((await loop.create_connection(client, "127.0.0.1", port))[0])
            ends.append(done)
        ended, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_EXCEPTION)
        for end in ended:
            end.result()
    finally:  # one that failed leaves others in the middle of an answer
        for transport in opened:
            cast(asyncio.Transport, transport).abort()
        await asyncio.gather(*ends, return_exceptions=True)
