"""A client's connection as an exchange sees it, for tests of what is said over it: the transport writes it all down."""

from __future__ import annotations

import asyncio
from typing import Any

from router.proxy.call import Headers
from router.proxy.client_exchange import ClientExchange
from router.proxy.request_head import RequestHead


class Transport:
    """Keeps what is written, one item per write."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_extra_info(self, name: str) -> None:
        return None


class BareHandler:
    """What handlers of tests have in common: they keep what the connection reports."""

    def __init__(self) -> None:
        self.crashed: list[str] = []  # paths
        self.unfit: list[int] = []  # statuses

    def on_unfit(self, status: int) -> None:
        self.unfit.append(status)

    def on_crash(self, exchange: ClientExchange) -> tuple[int, Headers, bytes]:
        self.crashed.append(exchange.path)
        return 500, [(b"content-type", b"text/x-crash")], b"crashed"


class Connection:
    """Keeps what was done with it; `end`: how it ended."""

    def __init__(self) -> None:
        self.end: str | None = None
        self.transport: Any = Transport()
        self.write_paused = False
        self.proxied = False
        self.resumed = 0
        self.drained = asyncio.Event()

    @property
    def task(self) -> asyncio.Task[None] | None:
        return asyncio.current_task()

    def resume_body(self) -> None:
        self.resumed += 1

    def find_client(self, headers: Headers) -> str:
        return "192.0.2.1"

    def close(self) -> None:
        self.end = "closed"

    def reset(self) -> None:
        self.end = "reset"

    async def drain(self) -> None:
        await self.drained.wait()
        self.write_paused = False


def an_exchange(
    *headers: tuple[bytes, bytes],
    method: str = "POST",
    path: str = "/a",
    target: bytes = b"",
    http_1_1: bool = True,
    body: bytes | None = b"",
) -> ClientExchange:
    """Over a `Connection` of its own, with all of `body` here; None: all of it is still to come."""
    head = RequestHead(
        method, path, target or path.encode(), list(headers), dict(reversed(headers)), http_1_1, http_1_1
    )
    exchange = ClientExchange(Connection(), head)
    if body is not None:
        arrive(exchange, body)
    return exchange


def arrive(exchange: ClientExchange, piece: bytes, *, more: bool = False) -> None:
    """A piece of the body, as the connection delivers it."""
    if piece:
        exchange.pieces.append(piece)
        exchange.buffered += len(piece)
    exchange.arriving = more
    exchange.wake()


def connection_of(exchange: ClientExchange) -> Connection:
    connection = exchange._connection
    assert isinstance(connection, Connection)
    return connection


def sent(exchange: ClientExchange) -> bytes:
    """All that was written."""
    return b"".join(connection_of(exchange).transport.written)
