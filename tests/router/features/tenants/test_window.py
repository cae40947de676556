"""The sliding window against a list of all charges."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.features.tenants.window import SLICE_S, WINDOW_S, SlidingWindow, find_room_s

PAUSES_S = st.sampled_from([0.0, 0.01, 0.04, 0.05, 0.06, 1.0, 9.95, 10.0, 29.9, 59.9, 59.95, 60.0, 60.05])


@given(st.lists(st.tuples(PAUSES_S, st.integers(1, 5)), max_size=60), st.integers(1, 12))
def test_no_60_s_have_more_than_the_limit_and_only_what_would_exceed_it_is_refused(asked, limit) -> None:
    window, now, admitted = SlidingWindow(), 1000.0, list[tuple[float, int]]()
    for pause_s, amount in asked:
        now += pause_s
        if window.advance(now) + amount <= limit:
            window.charge(amount, now)
            admitted.append((now, amount))
        else:
            recent = sum(n for at, n in admitted if now - at < WINDOW_S + SLICE_S)
            assert recent + amount > limit
        assert sum(n for at, n in admitted if now - at < WINDOW_S) <= limit


@given(st.lists(st.tuples(PAUSES_S, st.integers(1, 5)), min_size=1, max_size=30), st.integers(1, 200))
def test_room_comes_when_it_is_said_to_come_and_not_before(charged, excess) -> None:
    window, now = SlidingWindow(), 0.0
    for pause_s, amount in charged:
        now += pause_s
        window.charge(amount, now)
    before = window.total
    wait_s = find_room_s([window], excess, now)
    if wait_s is None:
        assert excess > before
        return
    assert before - window.advance(now + wait_s - 1e-6) < excess
    assert before - window.advance(now + wait_s + 1e-6) >= excess


def test_room_is_found_over_several_windows() -> None:
    one, other = SlidingWindow(), SlidingWindow()
    one.charge(3, 0.0)
    other.charge(3, 10.0)
    one.charge(3, 20.0)
    assert find_room_s([one, other], 1, 30.0) == 30.0
    assert find_room_s([one, other], 4, 30.0) == 40.0
    assert find_room_s([one, other], 9, 30.0) == 50.0
    assert find_room_s([one, other], 10, 30.0) is None
    assert (one.empty_s(30.0), other.empty_s(30.0), SlidingWindow().empty_s(30.0)) == (50.0, 40.0, 0.0)


def test_a_charge_is_corrected_while_it_is_in_the_window() -> None:
    window = SlidingWindow()
    charged = window.charge(100, 0.0)
    assert window.charge(10, 0.05) is charged, "of one slice"
    later = window.charge(1, 0.06)
    assert later is not charged
    assert window.correct(charged, -40, 30.0)
    assert window.total == 71
    assert window.advance(60.04) == 71, "the slice stays until its newest charge is 60 s old"
    assert not window.correct(charged, -10, 60.05)
    assert window.total == 1
    assert window.advance(60.06) == 0


def test_what_is_given_back_leaves_the_newest_charges() -> None:
    window = SlidingWindow()
    for at in (0.0, 10.0, 20.0):
        window.charge(5, at)
    window.give_back(7, 20.0)
    assert [one.amount for one in window] == [0, 3, 5]
    window.give_back(100, 20.0)
    assert window.total == 0
