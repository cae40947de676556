"""A client's connection as an exchange sees it, for tests of what is said over it: the transport writes it all down."""

from __future__ import annotations

import asyncio
from typing import Any

from router.proxy.client_exchange import ClientExchange, RequestHead


class Transport:
    """Keeps what is written, one item per write, and how it ended."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.end: str | None = None

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def close(self) -> None:
        self.end = "closed"

    def abort(self) -> None:
        self.end = "aborted"

    def get_extra_info(self, name: str) -> None:
        return None


class Connection:
    def __init__(self) -> None:
        self.transport: Any = Transport()
        self.behind = False
        self.asked_on = 0
        self.relieved = asyncio.Event()

    @property
    def task(self) -> asyncio.Task[None] | None:
        return asyncio.current_task()

    def read_on(self) -> None:
        self.asked_on += 1

    async def caught_up(self) -> None:
        await self.relieved.wait()
        self.behind = False


def an_exchange(
    *headers: tuple[bytes, bytes],
    method: str = "POST",
    path: str = "/a",
    target: bytes = b"",
    http_1_1: bool = True,
    body: bytes | None = b"",
) -> ClientExchange:
    """Over a `Connection` of its own, with all of `body` here; None: all of it is still to come."""
    asked = RequestHead(
        method, path, target or path.encode(), list(headers), dict(reversed(headers)), http_1_1, http_1_1
    )
    exchange = ClientExchange(Connection(), asked)
    if body is not None:
        arrive(exchange, body)
    return exchange


def arrive(exchange: ClientExchange, piece: bytes, *, more: bool = False) -> None:
    """A piece of the body, as the connection delivers it."""
    if piece:
        exchange.pieces.append(piece)
        exchange.buffered += len(piece)
    exchange.arriving = more
    exchange.tell()


def connection_of(exchange: ClientExchange) -> Connection:
    connection = exchange._connection
    assert isinstance(connection, Connection)
    return connection


def said(exchange: ClientExchange) -> bytes:
    """All that was written."""
    return b"".join(connection_of(exchange).transport.written)
