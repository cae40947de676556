"""What each client process gets: all sessions once, all agents, and no process without work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ConfigError
from router.testbed.loadgen.sharding import limit_requests, pace_sessions, split_sessions
from router.testbed.workloads import Session, Span, Turn, Workload

TURN = Turn(0, (Span(1, 10),), 5, 0.0)


def workload(*turns: int) -> Workload:
    """A session of so many turns for each number."""
    return Workload("some", 1, tuple(Session(n, 0.0, (TURN,) * many) for n, many in enumerate(turns)))


@given(st.integers(1, 40), st.none() | st.integers(1, 50), st.integers(1, 9))
def test_every_session_is_somebodys_and_every_agent_too(sessions: int, concurrency: int | None, processes: int) -> None:
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


@pytest.mark.parametrize(("requests", "kept"), [(0, []), (1, [1]), (3, [3]), (4, [3, 1]), (99, [3, 1, 2])])
def test_the_first_so_many_requests(requests: int, kept: list[int]) -> None:
    assert [len(session.turns) for session in limit_requests(workload(3, 1, 2), requests).sessions] == kept


def test_sessions_begin_so_far_apart_that_requests_come_at_the_rate() -> None:
    # 6 requests in 3 sessions are 2 a session: at 4 per second a session every half second
    assert [session.start_s for session in pace_sessions(workload(3, 1, 2), 4.0).sessions] == [0.0, 0.5, 1.0]
