"""One process's load against an emulated engine: sessions end in time, failures are reported; frames on a pipe."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import SystemClock
from router.lab.loadgen.load import LoadJob, SentRequest, encode_frame, load, read_frame
from router.lab.workloads.model import Session, Span, Turn, Workload
from router.lab.workloads.presets import CODEX
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.patience import PATIENCE_S

SMALL = CODEX.scale(tokens=0.01, sessions=4 / CODEX.sessions, turns=3 / CODEX.turns.median, think=0.001).workload(3)


def job(fake: FakeEngine, workload: Workload = SMALL, **changes: Any) -> LoadJob:
    fields = {"url": fake.url, "model": "m", "name": "mine", "concurrency": 2, "sessions": tuple(workload.sessions)}
    return LoadJob(**(fields | changes))


async def sent_by(job: LoadJob) -> list[SentRequest]:
    clock, sent = SystemClock(), list[SentRequest]()
    await load(job, clock, clock.now(), sent.append)
    return sent


def apart(count: int, seconds: float, output_tokens: int) -> Workload:
    """Sessions of one turn, each `seconds` after the one before it, in no order."""
    turns = [Turn(0, (Span(number, 20),), output_tokens, 0.0) for number in range(count)]
    sessions = [Session(number, number * seconds, (turn,)) for number, turn in enumerate(turns)]
    return Workload("apart", 1, tuple(reversed(sessions)), is_closed=False)


@pytest.mark.parametrize(("prompts", "path"), [("text", "/v1/chat/completions"), ("ids", "/v1/completions")])
async def test_every_session_is_talked_to_its_end_under_a_name_of_its_own(prompts: str, path: str) -> None:
    async with engine(model="m") as fake:
        sent = await sent_by(job(fake, prompts=prompts))
        names = {request.headers["x-session-id"] for request in fake.seen(path)}
    assert names == {f"mine-{session.number}" for session in SMALL.sessions}
    turns = [(session.number, number) for session in SMALL.sessions for number in range(len(session.turns))]
    assert sorted((one.session, one.turn) for one in sent) == turns
    for one in sent:
        turn = SMALL.sessions[one.session].turns[one.turn]
        assert (one.planned_tokens, one.planned_output_tokens) == (turn.prompt_tokens, turn.output_tokens)
        assert one.output_tokens == turn.output_tokens
        assert one.failure is None
        assert one.ttft_s is not None
        assert 0 < one.ttft_s <= one.duration_s
        assert one.sent_s >= 0 <= one.late_s


async def test_no_more_than_so_many_are_under_way_in_a_closed_loop() -> None:
    async with engine(model="m", decode_ms_per_token=2.0) as fake:
        sent = await sent_by(job(fake, concurrency=3))
    moments = [(one.sent_s, 1) for one in sent] + [(one.sent_s + one.duration_s, -1) for one in sent]
    under_way, most = 0, 0
    for _, change in sorted(moments):
        under_way += change
        most = max(most, under_way)
    assert 1 <= most <= 3


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    """Answers of 20 tokens at 50 ms take a second: five requests 20 ms apart are all sent before the first one ends."""
    async with engine(model="m", decode_ms_per_token=50.0) as fake:
        sent = await sent_by(job(fake, apart(5, 0.02, 20), concurrency=None))
    assert len(sent) == 5
    assert max(one.sent_s for one in sent) < min(one.sent_s + one.duration_s for one in sent)
    for one in sent:
        assert one.sent_s - one.late_s == pytest.approx(one.session * 0.02, abs=1e-6)  # due when the workload says


class HalfSpeed(SystemClock):
    """By which every timer fires early."""

    def now(self) -> float:
        return super().now() / 2


async def test_nothing_is_sent_before_it_is_due() -> None:
    clock, sent = HalfSpeed(), list[SentRequest]()
    async with engine(model="m") as fake:
        await load(job(fake, apart(3, 0.02, 1), concurrency=None), clock, clock.now() + 0.02, sent.append)
    assert len(sent) == 3
    assert all(one.sent_s >= one.session * 0.02 for one in sent)


async def test_nothing_is_sent_after_the_end_and_what_was_is_answered() -> None:
    async with engine(model="m", decode_ms_per_token=10.0) as fake:
        sent = await sent_by(job(fake, apart(50, 0.05, 20), concurrency=None, until_s=0.18))
        assert len(fake.seen("/v1/chat/completions")) == len(sent)
    assert {one.session for one in sent} <= {0, 1, 2, 3}  # due at 0, 50, 100 and 150 ms, if the machine was in time
    assert sent
    assert all(one.failure is None for one in sent)
    assert max(one.sent_s + one.duration_s for one in sent) > 0.18  # 200 ms each: not cut off


async def test_a_closed_loop_ends_at_its_time_too() -> None:
    async with engine(model="m", decode_ms_per_token=5.0) as fake:
        endless = apart(1000, 0.0, 10)
        sent = await asyncio.wait_for(sent_by(job(fake, endless, until_s=0.3)), 20)
    assert 1 <= len(sent) < 1000
    assert max(one.sent_s for one in sent) < 0.3 + max(one.late_s for one in sent) + 0.001


async def test_a_failure_ends_its_session_and_is_told_with_its_reason() -> None:
    async with engine(model="m") as fake:
        fake.faults(refuse=True)
        sent = await sent_by(job(fake))
    assert sorted((one.session, one.turn) for one in sent) == [(session.number, 0) for session in SMALL.sessions]
    assert {one.status for one in sent} == {503}
    assert all(one.failure is not None and one.ttft_s is None for one in sent)


async def test_an_endpoint_that_dies_midway_fails_the_rest_and_the_load_ends() -> None:
    clock, sent = SystemClock(), list[SentRequest]()
    async with engine(model="m", decode_ms_per_token=1.0) as fake:
        running_job = job(fake)
        running = asyncio.ensure_future(load(running_job, clock, clock.now(), sent.append))
        await eventually(lambda: sent)
        port = fake.server.port
    with socket.socket() as dead:
        dead.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        dead.bind(("127.0.0.1", port))  # or an engine of another test might listen there
        await asyncio.wait_for(running, PATIENCE_S)
    assert sent[0].failure is None
    failed = [one for one in sent if one.failure is not None]
    assert failed
    assert all(one.status is None or one.status == 200 for one in failed)  # nobody there, or broken off
    assert {one.session for one in sent} == {session.number for session in SMALL.sessions}


async def test_a_cancellation_ends_it_and_what_was_told_stays() -> None:
    clock, sent = SystemClock(), list[SentRequest]()
    async with engine(model="m", decode_ms_per_token=20.0) as fake:
        running = asyncio.ensure_future(load(job(fake), clock, clock.now(), sent.append))
        await eventually(lambda: sent, 20.0)
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    assert 0 < len(sent) < SMALL.turns


def test_a_job_travels_as_it_is() -> None:
    full_job = LoadJob(
        url="http://x", model="m", api_key="k", concurrency=None, until_s=2.0, sessions=tuple(SMALL.sessions)
    )
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(full_job), type=LoadJob) == full_job


def read_all(sent: bytes) -> list[bytes]:
    async def read() -> list[bytes]:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        found = []
        while (message := await read_frame(reader)) is not None:
            found.append(message)
        return found

    return asyncio.run(read())


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_messages_come_out_as_they_went_in(messages: list[bytes]) -> None:
    assert read_all(b"".join(map(encode_frame, messages))) == messages


@pytest.mark.parametrize("cut", [1, 3, 4, 6])
def test_a_message_that_breaks_off_is_none(cut: int) -> None:
    assert read_all(encode_frame(b"whole") + encode_frame(b"broken")[:cut]) == [b"whole"]


def a_session(number: int, turns: int = 1, **known: Any) -> Session:
    said = [Turn(0 if n == 0 else 40, (Span(10 * number + n, 20),), 4, 0.0) for n in range(turns)]
    return Session(number, 0.0, tuple(said), **known)


async def test_sub_agents_name_their_parent_and_are_waited_for() -> None:
    below = a_session(3)
    family = a_session(0, 2, sub_agents=(a_session(1), a_session(2, sub_agents=(below,))))
    async with engine(model="m") as fake:
        sent = await sent_by(job(fake, Workload("family", 1, (family, a_session(7))), concurrency=1))
        calls = [call.headers for call in fake.seen("/v1/chat/completions")]
    assert {(call["x-session-id"], call.get("x-parent-session-id")) for call in calls} == {
        ("mine-0", None), ("mine-1", "mine-0"), ("mine-2", "mine-0"), ("mine-3", "mine-2"), ("mine-7", None),
    }  # fmt: skip
    at = {(one.session, one.turn): (one.sent_s, one.sent_s + one.duration_s) for one in sent}
    assert at.keys() == {(0, 0), (0, 1), (1, 0), (2, 0), (3, 0), (7, 0)}
    assert all(at[number, 0][0] >= at[0, 0][1] for number in (1, 2))
    assert at[3, 0][0] >= at[2, 0][1]
    assert at[0, 1][0] >= max(at[number, 0][1] for number in (1, 2, 3))
    assert at[7, 0][0] >= at[0, 1][1]


def test_a_family_passes_through_the_pipe_to_a_client_process() -> None:
    family = a_session(0, 2, sub_agents=(a_session(1)._replace(after_turn=1),))
    sent = LoadJob(url="u", model="m", sessions=(family,))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=LoadJob) == sent
