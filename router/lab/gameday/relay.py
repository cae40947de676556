"""A TCP relay in front of a port, or of several. Cutting it makes a network partition without network privileges.

In front of several ports it spreads connections over them in turn, and goes to the next one if a port refuses, as a
load balancer in front of routers does.

A stalled relay keeps connections open and lets bytes wait, like a switch that drops packets: what was sent
meanwhile arrives when the relay is healed. A refusing relay resets open connections and refuses new ones, like a
host that is gone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Self

from router.tasks import Tasks

CHUNK_BYTES = 65536


class TcpRelay:
    """Relays while entered; `port` stays the same from then on. Entering raises OSError when there is no free
    port.
    """

    def __init__(self, host: str, *ports: int) -> None:
        self._host = host
        self._ports = deque(ports)
        self._tasks = Tasks("relay")
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        await self._listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        await self._tasks.close()

    def stall(self) -> None:
        """Let no byte through, in either direction."""
        self._flowing.clear()

    def refuse(self) -> None:
        """Reset open connections and stop listening."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._writers:
            writer.transport.abort()

    async def heal(self) -> None:
        """Let everything through again."""
        self._flowing.set()
        if self._server is None:
            await self._listen()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self.port, reuse_address=True)
        self.port = self._server.sockets[0].getsockname()[1]

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._tasks.spawn("connection", self._relay(reader, writer))

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay both directions until both have ended; an error in one resets both sides."""
        ends = [writer]
        self._writers.add(writer)
        try:
            await self._flowing.wait()
            far_reader, far_writer = await self._connect()
            ends.append(far_writer)
            self._writers.add(far_writer)
            await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))
        except OSError:
            for end in ends:
                end.transport.abort()
        finally:
            for end in ends:
                self._writers.discard(end)
                end.close()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the next port that accepts. Raises OSError if none does."""
        self._ports.rotate(-1)
        for port in list(self._ports):  # another connection may turn them meanwhile
            with suppress(ConnectionRefusedError):
                return await asyncio.open_connection(self._host, port)
        raise ConnectionRefusedError(f"no port of {self._host} accepts")

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK_BYTES):
            await self._flowing.wait()
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof() and not writer.is_closing():
            writer.write_eof()
