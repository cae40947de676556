"""Several client processes as one load: each gets a share of the sessions, all begin together, their rows are
collected.

The load needs several processes, because a client that streams and measures in one thread is late for other
requests long before an engine is busy. The requests of each process and their times are fixed before the start, so
processes are independent and the same command sends the same requests. Processes are controlled through pipes
(`client_process.py`) and do not receive the terminal's Ctrl-C: on cancellation the parent closes their input; they
report the rows that they have, and end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from router.clock import Clock
from router.errors import ConfigError, WarmrouteError
from router.lab.child_process import ChildProcess
from router.lab.loadgen.load import LoadJob, ReportRequest, SentRequest, encode_frame, read_frame
from router.lab.workloads.model import Session, Workload
from router.tasks import Tasks

READY_TIMEOUT_S = 60.0
START_DELAY_S = 0.1  # until the common start, so that all processes have received it by then
DRAIN_TIMEOUT_S = 5.0  # for reports after the end of the input


class ClientShare(NamedTuple):
    """The share of one process."""

    sessions: tuple[Session, ...]
    concurrency: int | None  # agents of a closed loop; `None`: an open loop


def limit_requests(workload: Workload, requests: int) -> Workload:
    """Return the first `requests` requests, session by session, each before its sub-agents."""
    return workload._replace(sessions=_limit_requests(workload.sessions, requests))


def _limit_requests(sessions: Sequence[Session], requests: int) -> tuple[Session, ...]:
    limited: list[Session] = []
    for session in sessions:
        if requests <= 0:
            break
        turns = session.turns[:requests]
        requests -= len(turns)
        begun = [one for one in session.sub_agents if one.after_turn < len(turns)]
        limited.append(session._replace(turns=turns, sub_agents=_limit_requests(begun, requests)))
        requests -= sum(len(one.turns) for below in limited[-1].sub_agents for one in below.family())
    return tuple(limited)


def pace_sessions(workload: Workload, rate: float) -> Workload:
    """Turn a closed loop into an open one whose sessions begin at even intervals, with `rate` requests per second.

    Only the starts are set: a session's later turns need its answers, and so wait for them.
    """
    interval_s = workload.turns / len(workload.sessions) / rate
    sessions = tuple(session._replace(start_s=n * interval_s) for n, session in enumerate(workload.sessions))
    return workload._replace(sessions=sessions)


def split_sessions(sessions: Sequence[Session], concurrency: int | None, processes: int) -> list[ClientShare]:
    """Distribute sessions to at most `processes` shares, by agent in a closed loop. Raises ConfigError if none."""
    agents = min(len(sessions), concurrency or len(sessions))
    if not agents:
        raise ConfigError("the workload has no session: nothing to send")
    processes = min(processes, agents)
    return [
        ClientShare(
            tuple(session for n, session in enumerate(sessions) if n % agents % processes == number),
            None if concurrency is None else len(range(number, agents, processes)),
        )
        for number in range(processes)
    ]


class ClientsNotStarted(WarmrouteError):
    """Client processes did not start. The reasons are on standard error."""


async def run_clients(jobs: Sequence[LoadJob], clock: Clock, report: ReportRequest) -> list[str]:
    """Run each job in its own process; return the processes' failures, one line each.

    `report` is called for every request; on cancellation, for requests that have ended. Raises ClientsNotStarted.
    """
    tasks = Tasks("clients")
    clients: list[ChildProcess] = []
    try:
        for job in jobs:
            client = await ChildProcess.start("router.lab.loadgen.client_process", stdin=asyncio.subprocess.PIPE)
            client.stdin.write(encode_frame(msgspec.msgpack.encode(job)))
            clients.append(client)
        await _wait_ready(clients)
        start = encode_frame(msgspec.msgpack.encode(clock.wall() + START_DELAY_S))
        running = [tasks.spawn(f"client {n}", _run(client, start, report)) for n, client in enumerate(clients)]
        try:
            await asyncio.wait(running)
        except asyncio.CancelledError:
            for client in clients:
                client.stdin.close()
            await asyncio.wait(running, timeout=DRAIN_TIMEOUT_S)
            raise
        return [f"client process {n} ended with status {one.status}" for n, one in enumerate(clients) if one.status]
    finally:
        await tasks.close()
        for client in clients:
            client.stdin.close()
        await asyncio.gather(*(client.stop(0.0) for client in clients))


async def _wait_ready(clients: Sequence[ChildProcess]) -> None:
    """Wait for the empty frame of each client. Raises ClientsNotStarted when one ends or stays silent."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            frames = await asyncio.gather(*(read_frame(client.stdout) for client in clients))
    except TimeoutError:
        frames = [None]
    if None in frames:
        raise ClientsNotStarted(f"{frames.count(None)} of {len(clients)} client processes did not start")


async def _run(client: ChildProcess, start: bytes, report: ReportRequest) -> None:
    """Start the client's load and report its requests until it ends."""
    client.stdin.write(start)
    decode = msgspec.msgpack.Decoder(SentRequest).decode
    while (message := await read_frame(client.stdout)) is not None:
        report(decode(message))
    await client.wait()
