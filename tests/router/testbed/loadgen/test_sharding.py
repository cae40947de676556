"""What each client process gets: all sessions once, all agents, and no process without work."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import ConfigError
from router.testbed.loadgen.sharding import bounded, paced, shares
from router.testbed.workloads import Session, Span, Turn, Workload

TURN = Turn(0, (Span(1, 10),), 5, 0.0)


def workload(*turns: int) -> Workload:
    """A session of so many turns for each number."""
    return Workload("some", 1, tuple(Session(n, 0.0, (TURN,) * many) for n, many in enumerate(turns)))


@given(st.integers(1, 40), st.none() | st.integers(1, 50), st.integers(1, 9))
def test_every_session_is_somebodys_and_every_agent_too(sessions: int, at_once: int | None, processes: int) -> None:
    all_of_them = workload(*[1] * sessions).sessions
    parts = shares(all_of_them, at_once, processes)
    assert sorted(session for part in parts for session in part.sessions) == list(all_of_them)
    assert all(part.sessions for part in parts)
    assert len(parts) == min(processes, sessions, at_once or sessions)
    agents = [part.at_once for part in parts]
    if at_once is None:
        assert set(agents) == {None}
    else:
        assert sum(many or 0 for many in agents) == min(at_once, sessions)
        assert min(many or 0 for many in agents) >= 1


def test_nothing_to_send_is_refused() -> None:
    with pytest.raises(ConfigError, match="nothing to send"):
        shares((), 4, 2)


@pytest.mark.parametrize(("requests", "kept"), [(0, []), (1, [1]), (3, [3]), (4, [3, 1]), (99, [3, 1, 2])])
def test_the_first_so_many_requests(requests: int, kept: list[int]) -> None:
    assert [len(session.turns) for session in bounded(workload(3, 1, 2), requests).sessions] == kept


def test_sessions_begin_so_far_apart_that_requests_come_at_the_rate() -> None:
    # 6 requests in 3 sessions are 2 a session: at 4 per second a session every half second
    assert [session.start_s for session in paced(workload(3, 1, 2), 4.0).sessions] == [0.0, 0.5, 1.0]
