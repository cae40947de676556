"""A worker's end of the channel to its supervisor: when to start, to open and to stop, and which workers live.

A worker stops when the channel closes: without the supervisor, the port is left to the next router, which starts
workers of its own.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable

from router.control.workers.channel import Channel
from router.control.workers.messages import (
    AnyMessage,
    JoinHosts,
    Members,
    OpenListeners,
    Query,
    StartWorker,
    StopWorker,
    WorkerBuilt,
    WorkerFailed,
    WorkerMessage,
)
from router.tasks import Tasks
from router.telemetry.metrics.exposition import PageForm

log = logging.getLogger("warmroute.workers")

SCRAPE_TIMEOUT_S = 8.0  # a frozen worker delays a page by 2 s; the pause after it and the next page take 2 s each


async def _no_answer(query: Query) -> bytes:
    return b""


class SupervisorLink:
    """`stopping` is set when the worker has to stop, `may_open` when it may accept connections, `may_join` when it
    may connect to other hosts. `on_members`: called when workers come and go.
    """

    def __init__(self, tasks: Tasks) -> None:
        self.stopping = asyncio.Event()
        self.gone = False  # whether the supervisor is gone
        self.may_open = asyncio.Event()
        self.may_join = asyncio.Event()
        self.idle_s: float | None = None  # for connections to end; None: the supervisor did not request the stop
        self.members = Members([], 0)
        self.on_members: Callable[[Members], None] = lambda members: None
        self.answer: Callable[[Query], Awaitable[bytes]] = _no_answer
        self._started: asyncio.Future[StartWorker] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()  # set when `members` has changed, or this worker has to stop
        self._channel = Channel(self._on_message, self._on_query, self._on_close, tasks)

    async def connect(self, sock: socket.socket) -> StartWorker:
        """Return the supervisor's first message. Raises ConnectionError when the supervisor is gone."""
        await self._channel.open(sock)
        return await self._started

    async def announce_built(self, run: str) -> None:
        """Report that this worker is built, and return once it is among the `members`, or has to stop. The worker
        on duty is known then.
        """
        self.send(WorkerBuilt(run, os.getpid()))
        while run not in {member.run for member in self.members.living} and not self.stopping.is_set():
            self._changed.clear()
            await self._changed.wait()

    async def report_failure(self, error: str) -> None:
        """Report that this worker cannot start, and return when the supervisor has read it: at an end that is closed,
        what it sends to this worker meanwhile would be an error, by which it loses what it has not read.
        """
        self.send(WorkerFailed(error))
        await self.stopping.wait()

    def send(self, message: WorkerMessage) -> None:
        """Report this worker's progress."""
        self._channel.send(message)

    async def scrape(self, form: PageForm) -> bytes | None:
        """Return the metrics page of all workers; None if the supervisor does not reply."""
        return await self._channel.ask("scrape", form, timeout_s=SCRAPE_TIMEOUT_S)

    def close(self) -> None:
        """Close the channel when everything is sent."""
        self._channel.close()

    def _on_message(self, message: AnyMessage) -> None:
        match message:
            case StartWorker(hold=hold, join=join):
                for event, on in ((self.may_open, not hold), (self.may_join, join)):
                    if on:
                        event.set()
                self._started.set_result(message)
            case Members():
                self.members = message
                self._changed.set()
                self.on_members(message)
            case OpenListeners():
                self.may_open.set()
            case JoinHosts():
                self.may_join.set()
            case StopWorker(idle_s):
                self.idle_s = idle_s
                self._stop()
            case _:
                log.error("unexpected message from the supervisor, ignored: %s", type(message).__name__)

    async def _on_query(self, query: Query, argument: str) -> bytes:
        return await self.answer(query)

    def _on_close(self) -> None:
        if not self._started.done():
            self._started.set_exception(ConnectionError("the supervisor is gone"))
        self.gone = True
        if not self.stopping.is_set():
            log.warning("the channel to the supervisor closed: stopping")
        self._stop()

    def _stop(self) -> None:
        self.stopping.set()
        self._changed.set()
