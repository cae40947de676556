"""A worker's end of the channel to its supervisor: when to start, to open, to join and to stop."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from router.control.workers.channel import Channel
from router.control.workers.messages import (
    JoinHosts,
    LivingWorker,
    Members,
    OpenListeners,
    Query,
    StartWorker,
    StopWorker,
    WorkerBuilt,
    WorkerFailed,
    WorkerUp,
)
from router.control.workers.supervisor_link import SupervisorLink
from router.tasks import Tasks
from tests.fakes.engines import eventually
from tests.patience import PATIENCE_S


@dataclass
class Ends:
    """The worker's end, and the channel of its supervisor."""

    link: SupervisorLink
    supervisor: Channel
    received: list[Any] = field(default_factory=list)  # by the supervisor
    closed: bool = False


@asynccontextmanager
async def ends() -> AsyncIterator[tuple[Ends, socket.socket]]:
    """Both ends, and the worker's socket."""
    tasks = Tasks("test")

    async def page(query: Query, argument: str) -> bytes:
        return f"{query} {argument}".encode()

    def on_close() -> None:
        made.closed = True

    received: list[Any] = []
    made = Ends(SupervisorLink(tasks), Channel(received.append, page, on_close, tasks), received)
    ours, theirs = socket.socketpair()
    await made.supervisor.open(ours)
    yield made, theirs
    made.supervisor.close()
    await eventually(lambda: made.closed)
    await tasks.close()


def start(*, hold: bool, join: bool) -> StartWorker:
    return StartWorker(1, "{}", None, False, 5, "host", "@name", b"secret", False, hold, join)


@pytest.mark.parametrize(("hold", "join"), [(True, False), (False, True)])
async def test_a_worker_opens_and_joins_at_once_or_when_it_may(hold: bool, join: bool) -> None:
    async with ends() as (both, sock):
        sent = start(hold=hold, join=join)
        both.supervisor.send(sent)
        assert await both.link.connect(sock) == sent
        assert (both.link.may_open.is_set(), both.link.may_join.is_set()) == (not hold, join)
        both.supervisor.send(OpenListeners())
        both.supervisor.send(JoinHosts())
        async with asyncio.timeout(PATIENCE_S):
            await both.link.may_open.wait()
            await both.link.may_join.wait()


async def test_a_worker_is_announced_when_the_others_know_it() -> None:
    async with ends() as (both, sock):
        known: list[Members] = []
        both.link.on_members = known.append
        both.supervisor.send(start(hold=False, join=True))
        await both.link.connect(sock)
        announcing = asyncio.create_task(both.link.announce_built("run1"))
        await eventually(lambda: both.received == [WorkerBuilt("run1", os.getpid())])
        before = Members([LivingWorker(0, "run0", 17, True)], 0)
        both.supervisor.send(before)
        await eventually(lambda: known == [before])
        assert not announcing.done()
        after = Members([*before.living, LivingWorker(1, "run1", 18, False)], 0, True)
        both.supervisor.send(after)
        await announcing
        assert both.link.members == known[-1] == after


async def test_queries_are_answered_both_ways() -> None:
    async with ends() as (both, sock):

        async def answer(query: Query) -> bytes:
            return query.upper().encode()

        both.supervisor.send(start(hold=False, join=True))
        await both.link.connect(sock)
        assert await both.supervisor.ask("ping") == b""
        both.link.answer = answer
        assert await both.supervisor.ask("page") == b"PAGE"
        assert await both.link.scrape("openmetrics") == b"scrape openmetrics"
        both.link.send(WorkerUp())
        await eventually(lambda: both.received == [WorkerUp()])


async def test_a_worker_stops_when_it_is_asked_to() -> None:
    async with ends() as (both, sock):
        both.supervisor.send(start(hold=False, join=True))
        await both.link.connect(sock)
        announcing = asyncio.create_task(both.link.announce_built("run1"))
        both.supervisor.send(StopWorker(2.5))
        await announcing  # it waits for nobody any more
        assert (both.link.stopping.is_set(), both.link.idle_s, both.link.gone) == (True, 2.5, False)


async def test_a_worker_stops_when_its_supervisor_is_gone(caplog: pytest.LogCaptureFixture) -> None:
    async with ends() as (both, sock):
        both.supervisor.send(start(hold=False, join=True))
        await both.link.connect(sock)
        both.supervisor.close()
        async with asyncio.timeout(PATIENCE_S):
            await both.link.stopping.wait()
        assert (both.link.idle_s, both.link.gone) == (None, True)
        assert "the channel to the supervisor closed: stopping" in caplog.text
        assert await both.link.scrape("text") is None


async def test_a_supervisor_that_is_gone_before_it_has_started_the_worker_is_an_error() -> None:
    async with ends() as (both, sock):
        both.supervisor.close()
        with pytest.raises(ConnectionError):
            await both.link.connect(sock)


async def test_a_worker_that_cannot_start_stays_until_its_supervisor_has_read_why() -> None:
    async with ends() as (both, sock):
        both.supervisor.send(start(hold=True, join=False))
        await both.link.connect(sock)
        failing = asyncio.ensure_future(both.link.report_failure("a port is taken"))
        await eventually(lambda: both.received == [WorkerFailed("a port is taken")])
        both.supervisor.send(Members([], 1))
        await eventually(lambda: both.link.members == Members([], 1))
        assert not failing.done()
        both.supervisor.send(StopWorker(0.0))
        await asyncio.wait_for(failing, PATIENCE_S)
