"""The line between two workers, over a real socket pair."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvloop

from router.control.workers import channel
from router.control.workers.channel import Channel
from router.control.workers.messages import AnswerMessage, AskMessage, LoadMessage, SessionMoved, StopMessage
from router.fleet.worker_share import WorkerShare
from router.kvcache.events import TargetId
from tests.fakes.engines import eventually

A = TargetId("a/0")


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


class End:
    """One side, and what it heard."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.lost = 0
        self.requests = 0
        self.channel: Channel

    def lose(self) -> None:
        self.lost += 1

    def share(self, target: TargetId) -> WorkerShare:
        return WorkerShare(requests=self.requests)


@asynccontextmanager
async def ends() -> AsyncIterator[tuple[End, End]]:
    both = End(), End()
    for end, sock in zip(both, socket.socketpair(), strict=True):
        end.channel = await Channel.open(sock, end.heard.append, end.lose, end.share)
    try:
        yield both
    finally:
        for end in both:
            end.channel.close()
        await eventually(lambda: all(end.lost for end in both))


async def test_both_sides_tell_and_hear() -> None:
    async with ends() as (one, other):
        one.channel.send(StopMessage(1.0))
        other.channel.send(SessionMoved(True, "m", "s", "a/0"))
        await eventually(lambda: one.heard and other.heard)
        assert (one.heard, other.heard) == ([SessionMoved(True, "m", "s", "a/0")], [StopMessage(1.0)])


async def test_a_busy_side_tells_the_last_word_in_few_frames() -> None:
    """300 bookings in about 30 ms are a handful of loads, and the last one is how it stands."""
    async with ends() as (one, other):
        for n in range(300):
            one.requests = n
            one.channel.report_load(A)
            await asyncio.sleep(0.0001)
        await eventually(lambda: LoadMessage(A, WorkerShare(requests=299)) in other.heard)
        assert other.heard[-1] == LoadMessage(A, WorkerShare(requests=299))
        assert len(other.heard) < 100


async def test_a_question_gets_its_own_answer() -> None:
    async with ends() as (one, other):

        async def ask(about: str) -> bytes | None:
            return await one.channel.ask("record", about)

        asking = [asyncio.create_task(ask(about)) for about in ("x", "y")]
        await eventually(lambda: len(other.heard) == 2)
        for asked in reversed(other.heard):
            assert isinstance(asked, AskMessage)
            other.channel.send(AnswerMessage(asked.number, asked.argument.encode()))
        assert await asyncio.gather(*asking) == [b"x", b"y"]


async def test_nobody_answers_in_time() -> None:
    async with ends() as (one, other):
        assert await one.channel.ask("scrape", timeout_s=0.02) is None
        (asked,) = other.heard
        other.channel.send(AnswerMessage(asked.number, b"too late"))
        assert await one.channel.ask("scrape", timeout_s=0.02) is None


async def test_who_asks_somebody_that_goes_gets_no_answer_at_once() -> None:
    async with ends() as (one, other):
        asking = asyncio.create_task(one.channel.ask("scrape", timeout_s=60.0))
        await eventually(lambda: other.heard)
        other.channel.close()
        assert await asking is None
        assert one.lost == 1


async def test_what_was_told_before_closing_arrives() -> None:
    async with ends() as (one, other):
        one.channel.send(StopMessage(1.0))
        one.channel.close()
        await eventually(lambda: other.lost)
        assert other.heard == [StopMessage(1.0)]


async def test_nonsense_ends_the_line(caplog) -> None:
    ours, theirs = socket.socketpair()
    end = End()
    end.channel = await Channel.open(ours, end.heard.append, end.lose, end.share)
    with theirs:
        theirs.send(b"\x00\x00\x00\x01\xc0")
        await eventually(lambda: end.lost)
    assert "sent an unknown message" in caplog.text


async def test_one_that_does_not_read_is_cut_off(monkeypatch, caplog) -> None:
    monkeypatch.setattr(channel, "MAX_UNSENT_BYTES", 100_000)
    ours, theirs = socket.socketpair()
    end = End()
    end.channel = await Channel.open(ours, end.heard.append, end.lose, end.share)
    with theirs:
        tell = partial(end.channel.send, AnswerMessage(0, bytes(50_000)))
        while not end.lost:
            tell()
            await asyncio.sleep(0.001)
    assert "does not read its messages" in caplog.text
