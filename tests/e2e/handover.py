"""Clients that notice every connection that is refused or reset, on raw sockets: no library tries anything again."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import grpc

from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL
from tests.fakes.gateway import Choice, Gateway

HOST = "127.0.0.1"
READ_TIMEOUT_S = 60.0
LONGEST_BYTES = 1 << 24


def body_of(tokens: int, *, stream: bool) -> bytes:
    message = {"role": "user", "content": "How many roads?"}
    body = {"model": MODEL, "messages": [message], "max_tokens": tokens, "ignore_eos": True, "stream": stream}
    return json.dumps(body).encode()


class Connection:
    """One connection, as long as it is kept."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.kept = True

    @classmethod
    async def open(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection(HOST, port, limit=LONGEST_BYTES))

    async def ask(self, method: str, path: str, body: bytes = b"") -> dict[str, str]:
        """Return the head of a whole answer of status 200. Raises ConnectionError, also when the answer breaks off."""
        head = f"{method} {path} HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(body)}\r\n"
        self._writer.write(f"{head}content-type: application/json\r\n\r\n".encode() + body)
        whole = False
        try:
            async with asyncio.timeout(READ_TIMEOUT_S):
                headers = await self._read()
            whole = True
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(f"{path}: the connection ended after {len(error.partial)} bytes") from error
        finally:
            if not whole:
                self.close()
        return headers

    async def _read(self) -> dict[str, str]:
        status, *lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.lower().split(": ", 1) for line in lines if line)
        if headers.get("transfer-encoding") == "chunked":
            await self._reader.readuntil(b"\r\n0\r\n\r\n")
        else:
            await self._reader.readexactly(int(headers["content-length"]))
        if " 200 " not in status:
            raise ConnectionError(status)
        self.kept = headers.get("connection") != "close"
        return headers

    def close(self) -> None:
        self._writer.close()


class Load:
    """Clients that ask without a pause. `answers`: by the run of the router that answered; `failures`: all others."""

    def __init__(self) -> None:
        self.answers: Counter[str] = Counter()
        self.pages: Counter[int] = Counter()  # by port
        self.choices: Counter[str] = Counter()  # of pickers, by the run
        self.failures: list[str] = []
        self._stopping = False
        self._clients: list[asyncio.Task[None]] = []

    async def prompts(self, service: Service, *, keep: bool, stream: bool) -> None:
        """Send prompts, over one connection while the router keeps it, or over one for each."""
        body = body_of(8, stream=stream)
        connection: Connection | None = None
        while not self._stopping:
            try:
                connection = connection or await Connection.open(service.port)
                headers = await connection.ask("POST", PATH, body)
                self.answers[headers["x-warmroute-record"].partition("-")[0]] += 1
            except (OSError, TimeoutError) as error:
                self.failures.append(f"keep={keep} stream={stream}: {error!r}")
                connection = None
                continue
            if not (keep and connection.kept):
                connection.close()
                connection = None
        if connection is not None:
            connection.close()

    async def get(self, port: int, path: str) -> None:
        """Ask for a page, over a connection for each."""
        while not self._stopping:
            try:
                connection = await Connection.open(port)
                await connection.ask("GET", path)
                connection.close()
                self.pages[port] += 1
            except (OSError, TimeoutError) as error:
                self.failures.append(f"port {port} {path}: {error!r}")
            await asyncio.sleep(0.01)  # beside the prompts

    async def exchanges(self, port: int) -> None:
        """Ask a picker for each request, as a gateway does, over one connection for as long as the picker keeps it."""
        async with Gateway.connect(port) as gateway:
            while not self._stopping:
                exchange = gateway.open()
                try:
                    choice = await exchange.ask(PATH, json.loads(body_of(8, stream=False)))
                    await exchange.answer(200, [b'{"choices": []}'], content_type="application/json")
                    ended = await exchange.ended()
                except grpc.aio.AioRpcError as error:
                    self.failures.append(f"picker on port {port}: {error.code()} {error.details()}")
                    continue
                if isinstance(choice, Choice) and ended == grpc.StatusCode.OK:
                    self.choices[choice.key.partition("-")[0]] += 1
                else:
                    self.failures.append(f"picker on port {port}: {choice} {ended}")

    async def stop(self) -> None:
        """Let each client end with its present answer."""
        self._stopping = True
        await asyncio.wait(self._clients)

    @asynccontextmanager
    async def running(self, *clients: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
        """Run `clients` (of the methods above) beside what is inside."""
        async with asyncio.TaskGroup() as group:
            self._clients = [group.create_task(client) for client in clients]
            try:
                yield
            finally:
                await self.stop()


class Service:
    """What stands before several routers and gives each new connection to one of them, as a Service of Kubernetes does:
    connections that are open stay with theirs.
    """

    def __init__(self, *ports: int) -> None:
        self.endpoints = list(ports)
        self._turn = 0

    @property
    def port(self) -> int:
        """The port for the next connection."""
        self._turn += 1
        return self.endpoints[self._turn % len(self.endpoints)]
