"""How much of a workload is sent, at what pace, and by which client process: all settled before the start.

So no process needs to know of another, and the same command sends the same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from router.errors import ConfigError
from router.testbed.workloads import Session, Workload


class ClientShare(NamedTuple):
    """The share of one process."""

    sessions: tuple[Session, ...]
    concurrency: int | None  # agents of a closed loop; `None`: an open loop


def limit_requests(workload: Workload, requests: int) -> Workload:
    """Return the first `requests` requests, session by session."""
    sessions: list[Session] = []
    for session in workload.sessions:
        if requests <= 0:
            break
        sessions.append(session._replace(turns=session.turns[:requests]))
        requests -= len(sessions[-1].turns)
    return workload._replace(sessions=tuple(sessions))


def pace_sessions(workload: Workload, rate: float) -> Workload:
    """Turn a closed loop into an open one whose sessions begin at even intervals, with `rate` requests per second.

    Only the starts are set: a session's later turns need its answers, and so wait for them.
    """
    interval_s = workload.turns / len(workload.sessions) / rate
    return workload._replace(
        sessions=tuple(session._replace(start_s=n * interval_s) for n, session in enumerate(workload.sessions))
    )


def split_sessions(sessions: Sequence[Session], concurrency: int | None, processes: int) -> list[ClientShare]:
    """Return the shares of at most `processes` processes, each with a session; a closed loop deals them out by agent.

    Raises ConfigError when there is no session.
    """
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
