"""Columns behave as the tuple of the same sessions would, whatever is asked of them, and a million are small."""

from __future__ import annotations

import pickle
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.lab.workloads.arrivals import OpenArrivals, RatePhase, speed_up, take_first, take_window, vary_rate
from router.lab.workloads.model import Session, Span, Turn, Workload
from router.lab.workloads.presets import CODEX, GROUPS

spans = st.builds(Span, st.integers(0, (1 << 64) - 1), st.integers(1, 1 << 20))
turns = st.builds(
    Turn,
    st.just(0),
    st.lists(spans, min_size=1, max_size=4).map(tuple),
    st.integers(1, 9000),
    st.just(0.0),
    st.none(),
)
sessions = st.lists(
    st.builds(Session, st.integers(0, 1 << 40), st.floats(0, 1e6), st.tuples(turns), st.just(0), st.just(())),
    max_size=8,
)
TURN = Turn(0, (Span(7, 100),), 10, 0.0)


def at(*times: float) -> Workload:
    arrivals = OpenArrivals.of(Session(number, at_s, (TURN,)) for number, at_s in enumerate(times))
    return Workload("some", 0, arrivals, is_closed=False)


def starts(workload: Workload) -> list[float]:
    return [session.start_s for session in workload.sessions]


@given(sessions, st.slices(8))
def test_it_is_a_sequence_of_what_was_put_in(given: list[Session], part: slice) -> None:
    arrivals = OpenArrivals.of(given)
    assert list(arrivals) == given
    assert len(arrivals) == len(given)
    assert [arrivals[row] for row in range(-len(given), len(given))] == [*given, *given]
    assert list(arrivals[part]) == given[part]
    assert arrivals == OpenArrivals.of(given)
    assert pickle.loads(pickle.dumps(arrivals)) == arrivals


@given(sessions)
def test_in_order_is_by_time_and_stable(given: list[Session]) -> None:
    assert list(OpenArrivals.of(given).in_order()) == sorted(given, key=lambda session: session.start_s)


def test_another_workload_is_not_equal() -> None:
    assert at(1.0).sessions != at(2.0).sessions
    assert at(1.0).sessions != (Session(0, 1.0, (TURN,)),)
    with pytest.raises(IndexError):
        at(1.0).sessions[1]


def test_an_open_loop_has_one_turn_per_session() -> None:
    with pytest.raises(ValueError, match="session 3 has 2 turns"):
        OpenArrivals.of([Session(3, 0.0, (TURN, TURN))])
    with pytest.raises(ValueError, match="session 3 has sub-agents"):
        OpenArrivals.of([Session(3, 0.0, (TURN,), sub_agents=(Session(4, 0.0, (TURN,)),))])


def test_requests_are_numbered_as_they_come() -> None:
    arrivals = OpenArrivals()
    for at_s in (0.0, 1.0):
        arrivals.add(at_s, TURN.fresh, 10)
    assert [session.number for session in arrivals] == [0, 1]


def test_twice_as_fast() -> None:
    assert starts(speed_up(at(0, 1, 5), 2)) == [0, 0.5, 2.5]


def test_a_window_begins_at_zero_and_leaves_out_its_end() -> None:
    cut = take_window(at(0, 1, 5, 8), 1, 8)
    assert starts(cut) == [0, 4]
    assert [session.number for session in cut.sessions] == [1, 2]
    assert list(take_window(at(0, 1), 5, 8).sessions) == []


def test_the_first_ones() -> None:
    assert starts(take_first(at(0, 1, 5), 2)) == [0, 1]
    assert starts(take_first(at(0, 1), 9)) == [0, 1]


def test_a_closed_loop_has_no_times() -> None:
    closed = CODEX.scale(sessions=1 / 610, turns=0.1).workload(1)
    for changed in (lambda: speed_up(closed, 2), lambda: take_window(closed, 0, 1), lambda: take_first(closed, 1)):
        with pytest.raises(ValueError, match="codex is a closed loop"):
            changed()


def test_a_request_takes_a_hundred_bytes() -> None:
    """So a million fit into 100 MB, where as objects they would take 600."""
    tracemalloc.start()
    workload = GROUPS.workload(1)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(workload.sessions) == 6_000
    # start 8 + number 8 + end 8 + output 4 + two spans of 12 = 52, and what arrays keep in reserve; 150 prefixes aside
    assert held / 6_000 < 100


BURSTS = (RatePhase(4.0, 3.0), RatePhase(16.0, 0.5))


def test_a_varied_rate_has_its_phases_over_and_over() -> None:
    moved = starts(vary_rate(at(*range(60)), BURSTS))
    assert moved[:14] == pytest.approx([number / 3 for number in range(12)] + [4.0, 6.0])
    assert [sum(20 * turn <= at_s < 20 * turn + 4 for at_s in moved) for turn in range(3)] == [12, 12, 12]
    assert [sum(20 * turn <= at_s < 20 * turn + 20 for at_s in moved) for turn in range(3)] == [20, 20, 20]


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=20).map(sorted))
def test_a_varied_rate_keeps_the_order_and_the_whole_periods(times: list[float]) -> None:
    moved = starts(vary_rate(at(*times), BURSTS))
    assert moved == sorted(moved)
    assert all(abs(after - before) < 20.0 for before, after in zip(times, moved, strict=True))


@pytest.mark.parametrize("phases", [(), (RatePhase(1.0, 2.0),), (RatePhase(1.0, 0.0), RatePhase(1.0, 2.0))])
def test_phases_that_are_no_rate_are_refused(phases: tuple[RatePhase, ...]) -> None:
    with pytest.raises(ValueError, match="phases"):
        vary_rate(at(1.0), phases)


def test_a_closed_loop_has_no_rate_to_vary() -> None:
    with pytest.raises(ValueError, match="closed loop"):
        vary_rate(CODEX.scale(sessions=1 / 610).workload(1), BURSTS)
