"""Clients that send raw bytes, each from an address of its choice: all of 127.0.0.0/8 is this machine."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from tests.e2e.conftest import MODEL

MB = 1024 * 1024
HOSTILE, BENIGN = "127.0.0.2", "127.0.0.3"
PATIENCE_S = 10.0
HEALTH = b"GET /health HTTP/1.1\r\nhost: r\r\n\r\n"
CHAT = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}).encode()


def post(length: int, body: bytes = b"", *headers: bytes) -> bytes:
    """A chat that announces a body of `length` bytes, and `body`, which may be less."""
    lines = b"".join(header + b"\r\n" for header in (b"host: r", b"content-type: application/json", *headers))
    return b"POST /v1/chat/completions HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b" % (lines, length, body)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        if not self.closed:
            self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Return the status and body of the next answer, which has a length."""
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
            return int(head.split(b" ", 2)[1]), await self.reader.readexactly(length)

    async def rest(self, patience_s: float = PATIENCE_S) -> bytes:
        """Return all that comes until the connection ends, in whatever way."""
        got = b""
        async with asyncio.timeout(patience_s):
            with suppress(ConnectionError):
                while data := await self.reader.read(65536):
                    got += data
        return got

    def stop_reading(self) -> None:
        self.writer.transport.pause_reading()

    @property
    def closed(self) -> bool:
        return self.writer.transport.is_closing()


async def dial(url: str, source: str = HOSTILE, *, buffered: bool = True, **options: Any) -> RawClient:
    """Connect to the router at `url` from `source`. If not `buffered`, the kernels at both ends hold some 100 KB for
    the connection; by default, loopback's large segments make it megabytes.
    """
    parts = urlsplit(url)
    with ExitStack() as on_failure:
        own = on_failure.enter_context(socket.socket())
        own.setblocking(False)
        if not buffered:
            own.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 1400)
        own.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(own, (parts.hostname, parts.port))
        streams = await asyncio.open_connection(sock=own, limit=4 * MB, **options)
        on_failure.pop_all()  # it is the transport's now
    return RawClient(*streams)


@asynccontextmanager
async def cut_off() -> AsyncIterator[list[RawClient]]:
    """Yield a list; the connections in it are cut off at the end."""
    found: list[RawClient] = []
    try:
        yield found
    finally:
        for client in found:
            client.writer.transport.abort()
        await asyncio.sleep(0)


@asynccontextmanager
async def dialled(url: str, count: int, source: str = HOSTILE, **options: Any) -> AsyncIterator[list[RawClient]]:
    """Yield that many connections; they are cut off at the end."""
    async with cut_off() as found:
        for _ in range(count):
            found.append(await dial(url, source, **options))
        yield found


async def chat(url: str, source: str = BENIGN) -> int:
    """Return the status of one small chat on a connection of its own; 0 where the router closed it."""
    async with dialled(url, 1, source) as (client,):
        client.send(post(len(CHAT), CHAT, b"connection: close"))
        said = await client.rest()
        return int(said.split(b" ", 2)[1]) if said else 0
