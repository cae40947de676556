"""One HTTP/1.1 exchange on a connection of its own. h11 reads the answer: a parser that neither side uses."""

from __future__ import annotations

import asyncio
from typing import NamedTuple
from urllib.parse import urlsplit

import h11

Headers = tuple[tuple[bytes, bytes], ...]
PATIENCE_S = 20.0


class Request(NamedTuple):
    """A request as it is sent: nothing is added but `content-length`, where there is a body."""

    method: str
    path: str
    headers: Headers = ()
    body: bytes = b""

    def render(self) -> bytes:
        """Return the bytes of the request."""
        lines = [b"%b %b HTTP/1.1" % (self.method.encode(), self.path.encode())]
        lines += [b"%b: %b" % header for header in self.headers]
        if self.body or self.method == "POST":
            lines.append(b"content-length: %d" % len(self.body))
        return b"\r\n".join([*lines, b"", self.body])


class Reply(NamedTuple):
    """An answer. `whole` is False when the connection ended before the answer did."""

    status: int
    headers: Headers
    body: bytes
    whole: bool

    def header(self, name: bytes) -> bytes | None:
        """Return the first header of this name; None without one."""
        return next((value for each, value in self.headers if each == name), None)


async def exchange(url: str, request: Request) -> Reply:
    """Send `request` to the server at `url`; return its answer. Raises `ValueError` for bytes that are no answer."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    try:
        async with asyncio.timeout(PATIENCE_S):
            writer.write(request.render())
            return await _read(reader, request.method)
    finally:
        writer.transport.abort()


async def _read(reader: asyncio.StreamReader, method: str) -> Reply:
    parser = h11.Connection(h11.CLIENT)
    parser.send(h11.Request(method=method, target="/", headers=[("host", "oracle")]))
    status, headers, body = 0, (), b""
    try:
        while True:
            match parser.next_event():
                case h11.NEED_DATA:
                    parser.receive_data(await _receive(reader))
                case h11.Response(status_code=status, headers=found):
                    headers = tuple(found)
                case h11.Data(data=data):
                    body += data
                case h11.EndOfMessage():
                    return Reply(status, headers, body, whole=True)
    except h11.RemoteProtocolError as error:
        if not status:
            raise ValueError(f"no answer: {error}") from error
        return Reply(status, headers, body, whole=False)


async def _receive(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read(65536)
    except ConnectionError:  # a reset: for the parser an end like any other
        return b""
