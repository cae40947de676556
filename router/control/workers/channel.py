"""One worker's end of the line to another: a Unix socket.

News after a silence goes out with the loop's next turn; what follows is gathered for `GATHER_S`. So a quiet router
tells at once, and a busy one writes a few hundred times a second, however many requests come and go: at 1 ms the line
cost 20 us a request, at 3 ms a quarter of that. Whoever stops reading is cut off before what waits for him fills the
memory.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from itertools import count
from typing import cast

import msgspec

from router.control.workers import messages
from router.control.workers.messages import AnswerMessage, AskMessage, FrameReader, Message, Question
from router.control.workers.outbox import Outbox
from router.fleet.load import WorkerShare
from router.kvcache.events import TargetId

log = logging.getLogger("warmroute.workers")

GATHER_S = 0.005
WAITING_BYTES = 256 * 1024 * 1024

Heard = Callable[[messages.Any], None]


class Channel(asyncio.Protocol):
    """`heard` gets what the other side tells, in order, `lost` is called when it is gone."""

    def __init__(self, heard: Heard, lost: Callable[[], None], share_of: Callable[[TargetId], WorkerShare]) -> None:
        self._heard = heard
        self._lost = lost
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox(share_of, self._wake)
        self._frames = FrameReader()
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, asyncio.Future[bytes]] = {}
        self._numbers = count()
        self._sent_at = -GATHER_S
        self.booked = self._outbox.booked
        self.tell: Callable[[Message], None] = self._outbox.tell

    @classmethod
    async def on(
        cls, sock: socket.socket, heard: Heard, lost: Callable[[], None], share_of: Callable[[TargetId], WorkerShare]
    ) -> Channel:
        line = cls(heard, lost, share_of)
        await line._loop.create_unix_connection(lambda: line, sock=sock)
        return line

    async def ask(self, question: Question, about: str = "", within_s: float = 2.0) -> bytes | None:
        """None: no answer in time, or nobody is there any more."""
        number = next(self._numbers)
        answer = self._asked[number] = self._loop.create_future()
        self.tell(AskMessage(number, question, about))
        try:
            return await asyncio.wait_for(answer, within_s)
        except (TimeoutError, ConnectionError):
            return None
        finally:
            del self._asked[number]

    def hurry(self) -> None:
        """What is gathered goes out now."""
        self._send()

    def close(self) -> None:
        """What was told goes out first."""
        self._send()
        if self._transport is not None:
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._frames.feed(data):
                if isinstance(message, AnswerMessage):
                    self._answered(message)
                else:
                    self._heard(message)
        except msgspec.DecodeError:
            log.exception("another worker tells what nobody understands: it is cut off")
            self._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(ConnectionError())
        self._lost()

    # parts of the above

    def _answered(self, told: AnswerMessage) -> None:
        answer = self._asked.get(told.number)
        if answer is not None and not answer.done():
            answer.set_result(told.payload)

    def _wake(self) -> None:
        due_s = self._sent_at + GATHER_S - self._loop.time()
        if due_s <= 0:
            self._loop.call_soon(self._send)
        else:
            self._loop.call_later(due_s, self._send)

    def _send(self) -> None:
        gathered = self._outbox.take()
        if self._transport is None or not gathered:
            return
        self._sent_at = self._loop.time()
        self._transport.write(messages.frame(gathered))
        if self._transport.get_write_buffer_size() > WAITING_BYTES:
            log.error("another worker does not listen: it is cut off")
            self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
