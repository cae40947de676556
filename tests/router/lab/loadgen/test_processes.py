"""Client processes: their shares of the sessions, and one load against an emulated engine, whatever ends early."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import SystemClock
from router.errors import ConfigError
from router.lab.loadgen.load import LoadJob, SentRequest, encode_frame
from router.lab.loadgen.processes import (
    ClientsNotStarted,
    limit_requests,
    pace_sessions,
    run_clients,
    split_sessions,
)
from router.lab.workloads.model import Session, Span, Turn, Workload
from router.lab.workloads.presets import CODEX
from tests.fakes.engines import engine, eventually

WORKLOAD = CODEX.scale(tokens=0.01, sessions=6 / CODEX.sessions, turns=4 / CODEX.turns.median, think=0.001).workload(3)


def jobs(url: str, count: int = 2) -> list[LoadJob]:
    parts = split_sessions(WORKLOAD.sessions, 4, count)
    return [LoadJob(url=url, model="m", concurrency=part.concurrency, sessions=part.sessions) for part in parts]


def children() -> set[int]:
    """Client processes that this one has started and that have not ended."""
    mine = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    return {int(pid) for pid in mine if b"client_process" in Path(f"/proc/{pid}/cmdline").read_bytes()}


async def test_two_processes_send_every_turn_once_on_one_axis_of_time() -> None:
    sent: list[SentRequest] = []
    async with engine(model="m", decode_ms_per_token=0.5) as fake:
        clock = SystemClock()
        before_s = clock.now()
        assert await run_clients(jobs(fake.url), clock, sent.append) == []
        took_s = clock.now() - before_s
        connections = {call.headers["x-session-id"] for call in fake.seen("/v1/chat/completions")}
    turns = [(session.number, number) for session in WORKLOAD.sessions for number in range(len(session.turns))]
    assert sorted((one.session, one.turn) for one in sent) == turns
    assert len(connections) == len(WORKLOAD.sessions)
    assert {one.failure for one in sent} == {None}
    assert all(-0.01 <= one.sent_s < took_s for one in sent)
    first = [min(one.sent_s for one in sent if one.session % 4 % 2 == number) for number in (0, 1)]
    assert abs(first[0] - first[1]) < 1.0  # they began together
    assert children() == set()


async def test_a_cancellation_ends_all_of_them_and_keeps_what_there_is() -> None:
    sent: list[SentRequest] = []
    async with engine(model="m", decode_ms_per_token=30.0) as fake:
        running = asyncio.ensure_future(run_clients(jobs(fake.url), SystemClock(), sent.append))
        await eventually(lambda: sent, 30.0)
        assert len(children()) == 2
        running.cancel()
        await asyncio.wait([running])
    assert running.cancelled()
    assert 0 < len(sent) < WORKLOAD.turns
    assert children() == set()


async def test_a_process_that_is_killed_is_told_and_the_others_go_on() -> None:
    sent: list[SentRequest] = []
    async with engine(model="m", decode_ms_per_token=5.0) as fake:
        running = asyncio.ensure_future(run_clients(jobs(fake.url), SystemClock(), sent.append))
        await eventually(lambda: sent, 30.0)
        os.kill(max(children()), signal.SIGKILL)
        (trouble,) = await running
    assert trouble.startswith("client process ")
    assert trouble.endswith(f"ended with status {-signal.SIGKILL}")
    assert 0 < len(sent) < WORKLOAD.turns


async def test_processes_that_do_not_start_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ClientsNotStarted, match="2 of 2 client processes did not start"):
        await run_clients(jobs("http://127.0.0.1:1"), SystemClock(), lambda sent: None)


async def started(read: Callable[[asyncio.subprocess.Process], object], job: bytes) -> int:
    """A client process alone, led by hand; its status when it has ended."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "router.lab.loadgen.client_process"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    process.stdin.write(encode_frame(job))
    read(process)
    return await asyncio.wait_for(process.wait(), 30)


async def test_a_process_whose_leader_goes_before_the_beginning_ends() -> None:
    job = msgspec.msgpack.encode(jobs("http://127.0.0.1:1", 1)[0])
    assert await started(lambda process: process.stdin.close(), job) == 0  # type: ignore[union-attr]


TURN = Turn(0, (Span(1, 10),), 5, 0.0)


def workload(*turns: int) -> Workload:
    """A session of so many turns for each number."""
    return Workload("some", 1, tuple(Session(n, 0.0, (TURN,) * many) for n, many in enumerate(turns)))


@given(st.integers(1, 40), st.none() | st.integers(1, 50), st.integers(1, 9))
def test_every_session_and_every_agent_is_in_one_share(sessions: int, concurrency: int | None, processes: int) -> None:
    all_of_them = workload(*[1] * sessions).sessions
    parts = split_sessions(all_of_them, concurrency, processes)
    assert sorted(session for part in parts for session in part.sessions) == list(all_of_them)
    assert all(part.sessions for part in parts)
    assert len(parts) == min(processes, sessions, concurrency or sessions)
    agents = [part.concurrency for part in parts]
    if concurrency is None:
        assert set(agents) == {None}
    else:
        assert sum(many or 0 for many in agents) == min(concurrency, sessions)
        assert min(many or 0 for many in agents) >= 1


def test_nothing_to_send_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to send"):
        split_sessions((), 4, 2)


@pytest.mark.parametrize(("requests", "turns"), [(0, []), (1, [1]), (3, [3]), (4, [3, 1]), (99, [3, 1, 2])])
def test_the_first_so_many_requests(requests: int, turns: list[int]) -> None:
    assert [len(session.turns) for session in limit_requests(workload(3, 1, 2), requests).sessions] == turns


def test_sessions_begin_so_far_apart_that_requests_come_at_the_rate() -> None:
    # 6 requests in 3 sessions are 2 a session: at 4 per second a session every half second
    assert [session.start_s for session in pace_sessions(workload(3, 1, 2), 4.0).sessions] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    ("requests", "kept"),
    [(1, {0: 1}), (2, {0: 2}), (3, {0: 2, 1: 1}), (4, {0: 2, 1: 1, 2: 1}), (9, {0: 2, 1: 1, 2: 1, 3: 1})],
)
def test_of_a_family_its_session_comes_first_and_no_sub_agent_without_its_answer(
    requests: int, kept: dict[int, int]
) -> None:
    turn = Turn(0, (Span(1, 5),), 1, 0.0)
    subs = (Session(1, 0.0, (turn,)), Session(2, 0.0, (turn,), after_turn=1))
    family = Session(0, 0.0, (turn, turn), sub_agents=subs)
    limited = limit_requests(Workload("w", 1, (family, Session(3, 0.0, (turn,)))), requests)
    assert {one.number: len(one.turns) for one in limited.all_sessions()} == kept
