"""How much of a workload is sent, at what pace, and which client process sends what: all settled before the start.

So no process needs to know of another, and the same command sends the same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from router.errors import ConfigError
from router.testbed.workloads import Session, Workload


class ClientShare(NamedTuple):
    """One process's."""

    sessions: tuple[Session, ...]
    concurrency: int | None  # None: an open loop


def limit_requests(workload: Workload, requests: int) -> Workload:
    """The first so many requests, session by session."""
    kept: list[Session] = []
    for session in workload.sessions:
        if requests <= 0:
            break
        kept.append(session._replace(turns=session.turns[:requests]))
        requests -= len(kept[-1].turns)
    return workload._replace(sessions=tuple(kept))


def pace_sessions(workload: Workload, rate: float) -> Workload:
    """A closed loop's sessions as an open one: they begin evenly apart, so that there are `rate` requests per second.

    Only beginnings are set: a session's later turns need its answers, and so wait for them.
    """
    apart_s = workload.turns / len(workload.sessions) / rate
    return workload._replace(
        sessions=tuple(session._replace(start_s=place * apart_s) for place, session in enumerate(workload.sessions))
    )


def split_sessions(sessions: Sequence[Session], concurrency: int | None, processes: int) -> list[ClientShare]:
    """At most `processes`, none of them without a session. Agents of a closed loop take sessions in turns."""
    agents = min(len(sessions), concurrency or len(sessions))
    if not agents:
        raise ConfigError("the workload has no session: nothing to send")
    processes = min(processes, agents)
    return [
        ClientShare(
            tuple(session for place, session in enumerate(sessions) if place % agents % processes == number),
            None if concurrency is None else len(range(number, agents, processes)),
        )
        for number in range(processes)
    ]
