"""A webhook on a real socket, which keeps what it is sent."""

from __future__ import annotations

import asyncio
import contextlib
import re


class Webhook:
    """Answers every request with `status`; with `silent`, once that is set. `requests`: heads and bodies."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes]] = []
        self.status = 202
        self.silent: asyncio.Event | None = None

    async def __aenter__(self) -> Webhook:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/wake"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            self.requests.append((head.decode(), body))
            if self.silent is not None:
                await self.silent.wait()
            writer.write(b"HTTP/1.1 %d X\r\ncontent-length: 0\r\nconnection: close\r\n\r\n" % self.status)
            await writer.drain()
        writer.close()
