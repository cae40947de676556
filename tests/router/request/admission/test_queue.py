"""A line of those who wait: its order, and how long it takes."""

from __future__ import annotations

from router.request.admission.queue import PACE_OF, WaitQueue


def a_lane(*names: str) -> WaitQueue[str]:
    lane: WaitQueue[str] = WaitQueue()
    for name in names:
        lane.join(name)
    return lane


def test_first_come_first_served_and_anybody_may_leave() -> None:
    lane = a_lane("a", "b", "c")
    assert lane.first == "a"
    lane.leave("b")
    lane.let_in("a", 1.0)
    assert (lane.first, list(lane), len(lane)) == ("c", ["c"], 1)
    lane.leave("c")
    assert lane.first is None


def test_the_wait_is_unknown_until_two_were_let_in() -> None:
    lane = a_lane("a", "b", "c", "d", "e")
    assert lane.expected_s(1, 0.0) is None
    lane.let_in("a", 10.0)
    assert lane.expected_s(1, 14.0) is None
    lane.let_in("b", 14.0)
    assert lane.expected_s(1, 14.0) == 4.0, "one pause of 4 s"
    assert lane.expected_s(3, 14.0) == 12.0


def test_a_line_that_stands_still_makes_the_wait_longer() -> None:
    lane = a_lane("a", "b", "c")
    lane.let_in("a", 10.0)
    lane.let_in("b", 14.0)
    assert lane.expected_s(1, 34.0) == 24.0, "one pause that was over, and one that still is not"


def test_only_the_last_few_count() -> None:
    lane = a_lane(*map(str, range(PACE_OF + 11)))
    for number in range(10):
        lane.let_in(str(number), 0.0)
    for number in range(PACE_OF):
        lane.let_in(str(10 + number), 1000.0 + number)
    assert lane.expected_s(1, 1000.0 + PACE_OF - 1) == 1.0


def test_a_line_that_has_run_empty_forgets_its_pace() -> None:
    lane = a_lane("a", "b")
    lane.let_in("a", 1.0)
    lane.let_in("b", 2.0)
    lane.join("c")
    assert lane.expected_s(1, 3.0) is None
