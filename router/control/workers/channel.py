"""The channel between the supervisor and a worker: each has one end of a Unix socket pair."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from itertools import count
from typing import cast

import msgspec

from router.control.workers.messages import (
    AnswerMessage,
    AnyMessage,
    AskMessage,
    FrameReader,
    Query,
    WorkerMessage,
    encode_messages,
)
from router.tasks import Tasks

log = logging.getLogger("warmroute.workers")

MAX_UNSENT_BYTES = 64 * 1024 * 1024

OnMessage = Callable[[AnyMessage], None]
OnQuery = Callable[[Query, str], Awaitable[bytes]]


class Channel(asyncio.Protocol):
    """Calls `on_message` with each message of the other end, in order, `on_query` for each query, and `on_close`
    once when the other end is gone.
    """

    def __init__(self, on_message: OnMessage, on_query: OnQuery, on_close: Callable[[], None], tasks: Tasks) -> None:
        self._on_message = on_message
        self._on_query = on_query
        self._on_close = on_close
        self._tasks = tasks
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._queries: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = count()

    async def open(self, sock: socket.socket) -> None:
        """Use this end of a socket pair."""
        await asyncio.get_running_loop().create_unix_connection(lambda: self, sock=sock)

    async def ask(self, query: Query, argument: str = "", timeout_s: float = 2.0) -> bytes | None:
        """Return the reply of the other end; None if no reply comes in time or the other end is gone."""
        number = next(self._numbers)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._queries[number] = answer
        self.send(AskMessage(number, query, argument))
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except (TimeoutError, ConnectionError):
            return None
        finally:
            del self._queries[number]

    def send(self, message: WorkerMessage) -> None:
        """Send a message. If the other end stops reading, the channel is closed before unsent messages fill the
        memory.
        """
        if self._transport is None:
            return
        self._transport.write(encode_messages([message]))
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            log.error("worker channel: the other process does not read its messages; closing the channel")
            self._transport.abort()

    def close(self) -> None:
        """Close the channel when everything is written."""
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                match message:
                    case AskMessage():
                        self._tasks.spawn("answer", self._answer(message))
                    case AnswerMessage(number, payload):
                        if (answer := self._queries.get(number)) is not None and not answer.done():
                            answer.set_result(payload)
                    case _:
                        self._on_message(message)
        except msgspec.DecodeError:
            log.exception("worker channel: unknown message received; closing the channel")
            if self._transport is not None:
                self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for answer in self._queries.values():
            if not answer.done():
                answer.set_exception(ConnectionError())
        self._on_close()

    async def _answer(self, message: AskMessage) -> None:
        self.send(AnswerMessage(message.number, await self._on_query(message.query, message.argument)))
