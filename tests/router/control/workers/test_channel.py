"""The channel between the supervisor and a worker, over a real socket pair."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop

from router.control.workers import channel
from router.control.workers.channel import Channel
from router.control.workers.messages import (
    AnswerMessage,
    AskMessage,
    Query,
    StopWorker,
    WorkerStarted,
    WorkerUp,
    encode_messages,
)
from router.tasks import Tasks
from tests.fakes.engines import eventually


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


class End:
    """One end: what it received, and the queries that wait for `reply`."""

    def __init__(self) -> None:
        self.tasks = Tasks("test")
        self.received: list[Any] = []
        self.queries: list[tuple[Query, str, asyncio.Future[bytes]]] = []
        self.closed = 0
        self.channel = Channel(self.received.append, self.on_query, self.on_close, self.tasks)

    async def on_query(self, query: Query, argument: str) -> bytes:
        reply: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.queries.append((query, argument, reply))
        return await reply

    def on_close(self) -> None:
        self.closed += 1


@asynccontextmanager
async def ends() -> AsyncIterator[tuple[End, End]]:
    both = End(), End()
    for end, sock in zip(both, socket.socketpair(), strict=True):
        await end.channel.open(sock)
    yield both
    for end in both:
        await end.tasks.close()
        end.channel.close()
    await eventually(lambda: [end.closed for end in both] == [1, 1])


@asynccontextmanager
async def one_end() -> AsyncIterator[tuple[End, socket.socket]]:
    """An end of the channel, and the socket of the other one."""
    end = End()
    ours, theirs = socket.socketpair()
    await end.channel.open(ours)
    with theirs:
        yield end, theirs
    await end.tasks.close()
    await eventually(lambda: end.closed == 1)


async def test_both_send_and_receive_in_order() -> None:
    async with ends() as (one, other):
        one.channel.send(StopWorker(1.0))
        for message in (WorkerStarted(), WorkerUp()):
            other.channel.send(message)
        await eventually(lambda: len(one.received) == 2 and other.received)
        assert (one.received, other.received) == ([WorkerStarted(), WorkerUp()], [StopWorker(1.0)])


async def test_a_query_gets_its_own_reply() -> None:
    async with ends() as (one, other):
        asking = [asyncio.create_task(one.channel.ask("scrape", form)) for form in ("text", "openmetrics")]
        await eventually(lambda: len(other.queries) == 2)
        for query, form, reply in reversed(other.queries):
            assert query == "scrape"
            reply.set_result(form.encode())
        assert await asyncio.gather(*asking) == [b"text", b"openmetrics"]
        assert one.received == other.received == []


async def test_no_reply_in_time_is_none_and_one_that_comes_late_is_dropped() -> None:
    async with ends() as (one, other):
        assert await one.channel.ask("page", timeout_s=0.02) is None
        await eventually(lambda: other.queries)
        other.queries[0][2].set_result(b"late")
        assert await one.channel.ask("page", timeout_s=0.02) is None


async def test_a_query_to_an_end_that_closes_gets_no_reply_at_once() -> None:
    async with ends() as (one, other):
        asking = asyncio.create_task(one.channel.ask("page", timeout_s=60.0))
        await eventually(lambda: other.queries)
        other.channel.close()
        assert await asking is None
        assert one.closed == 1
        assert await one.channel.ask("page", timeout_s=0.02) is None
        one.channel.send(WorkerUp())  # to nobody


async def test_what_was_sent_before_closing_arrives() -> None:
    async with ends() as (one, other):
        one.channel.send(StopWorker(1.0))
        one.channel.close()
        await eventually(lambda: other.closed)
        assert other.received == [StopWorker(1.0)]


@pytest.mark.parametrize("payload", [b"\x00\x00\x00\x01\xc0", encode_messages([AskMessage(1, "tell me", "")])])  # type: ignore[arg-type]
async def test_an_unknown_message_closes_the_channel(payload: bytes, caplog: pytest.LogCaptureFixture) -> None:
    async with one_end() as (end, theirs):
        theirs.send(payload)
        await eventually(lambda: end.closed)
    assert "unknown message received" in caplog.text


async def test_an_end_that_does_not_read_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(channel, "MAX_UNSENT_BYTES", 100_000)
    async with one_end() as (end, _):
        while not end.closed:
            end.channel.send(AnswerMessage(0, bytes(50_000)))
            await asyncio.sleep(0)
    assert "does not read its messages" in caplog.text
