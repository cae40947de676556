"""The wait queue: its order and the expected wait."""

from __future__ import annotations

from router.features.admission.queue import PACE_WINDOW, WaitQueue


def a_queue(*names: str) -> WaitQueue[str]:
    queue: WaitQueue[str] = WaitQueue()
    for name in names:
        queue.join(name)
    return queue


def test_first_come_first_served_and_any_may_leave() -> None:
    queue = a_queue("a", "b", "c")
    assert queue.first == "a"
    queue.leave("b")
    queue.admit("a", 1.0)
    assert (queue.first, list(queue), len(queue)) == ("c", ["c"], 1)
    queue.leave("c")
    assert queue.first is None


def test_the_wait_is_unknown_until_two_were_admitted() -> None:
    queue = a_queue("a", "b", "c", "d", "e")
    assert queue.expected_s(1, 0.0) is None
    queue.admit("a", 10.0)
    assert queue.expected_s(1, 14.0) is None
    queue.admit("b", 14.0)
    assert queue.expected_s(1, 14.0) == 4.0, "one pause of 4 s"
    assert queue.expected_s(3, 14.0) == 12.0


def test_a_queue_that_does_not_move_makes_the_wait_longer() -> None:
    queue = a_queue("a", "b", "c")
    queue.admit("a", 10.0)
    queue.admit("b", 14.0)
    assert queue.expected_s(1, 34.0) == 24.0, "one pause that was over, and one that still is not"


def test_only_the_last_few_count() -> None:
    queue = a_queue(*map(str, range(PACE_WINDOW + 11)))
    for number in range(10):
        queue.admit(str(number), 0.0)
    for number in range(PACE_WINDOW):
        queue.admit(str(10 + number), 1000.0 + number)
    assert queue.expected_s(1, 1000.0 + PACE_WINDOW - 1) == 1.0


def test_an_empty_queue_drops_its_pace() -> None:
    queue = a_queue("a", "b")
    queue.admit("a", 1.0)
    queue.admit("b", 2.0)
    queue.join("c")
    assert queue.expected_s(1, 3.0) is None
