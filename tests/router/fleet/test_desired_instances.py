"""How many instances are wanted: the arithmetic of each reason, up by a mean, down after a window."""

from __future__ import annotations

from typing import Any

import pytest

from router.fleet.desired_instances import DesiredCount, DesiredInstances, RoleReading, find_needs

IDLE = RoleReading(
    instances=2, busy=0.0, queued_ms=0.0, queues=0.0, live_tokens=0, reused_tokens=None, capacity_tokens=200_000
)


class Story:
    def __init__(self, **how: Any) -> None:
        self.state = DesiredInstances(**how)
        self.now = 1000.0

    def go(self, seconds: float, reading: RoleReading = IDLE) -> DesiredCount | None:
        """Observe `reading` every half second, and return the last answer."""
        found = None
        for _ in range(round(seconds * 2)):
            self.now += 0.5
            found = self.state.observe(reading, self.now)
        return found


def test_each_reason_asks_for_its_own() -> None:
    # busy 1.4 + growth of 6 s of work in 10 s = 2.0 instances, loaded to 0.7; a mean queue of 3.5 times 2 s
    # 170,000 live tokens, where 100,000 x 0.85 fit into one; 255,000 that requests come back for
    first = IDLE._replace(busy=1.4, queued_ms=4_000.0, queues=2.0, live_tokens=170_000, reused_tokens=255_000)
    needs = find_needs([first, first._replace(queued_ms=10_000.0, queues=5.0)], 10.0)
    assert needs == pytest.approx({"prefill": 2.0 / 0.7, "queue": 3.5, "memory": 2.0, "hits": 3.0})


def test_queues_that_shrink_ask_for_no_more_than_there_are() -> None:
    first = IDLE._replace(queued_ms=9_000.0, queues=4.0)
    assert find_needs([first, first._replace(queued_ms=8_000.0)], 10.0)["queue"] == 2
    assert find_needs([first, first._replace(queued_ms=9_000.0)], 10.0)["queue"] == 4.0


def test_what_sessions_come_back_for_is_held_though_nothing_is_busy() -> None:
    story = Story()
    found = story.go(400, IDLE._replace(reused_tokens=200_000))
    assert found is not None
    assert (found.instances, found.reason) == (3, "hits")  # 200,000 / 85,000


def test_hits_are_no_reason_where_they_are_unknown() -> None:
    assert "hits" not in find_needs([IDLE], 10.0)
    known = find_needs([IDLE, IDLE._replace(reused_tokens=85_000)], 10.0)
    assert known["hits"] == pytest.approx(1.0)


def test_memory_is_no_reason_where_its_size_is_unknown() -> None:
    assert "memory" not in find_needs([IDLE._replace(capacity_tokens=None, live_tokens=10**9)], 10.0)


def test_nothing_is_said_of_one_reading_nor_of_a_few_seconds() -> None:
    story = Story()
    assert story.go(7.5, IDLE._replace(queued_ms=1e6)) is None
    assert story.go(1.0, IDLE._replace(queued_ms=1e6)) is not None


def test_one_peak_does_not_scale() -> None:
    story = Story()
    story.go(60)
    found = story.go(0.5, IDLE._replace(queued_ms=10_000.0, busy=2.0))
    assert found is not None
    assert found.instances <= 2


def test_up_within_the_window_and_down_after_the_long_one() -> None:
    story = Story()
    busy = IDLE._replace(busy=2.0, queued_ms=1000.0)
    up = story.go(60, busy)
    assert up is not None
    assert (up.instances, up.reason, up.held_from) == (3, "prefill", None)  # 2.0 / 0.7
    held = story.go(240)
    assert held is not None
    assert (held.instances, held.reason, held.held_from) == (3, "prefill", 1)
    down = story.go(120)
    assert down is not None
    assert (down.instances, down.reason, down.held_from) == (1, "minimum", None)


def test_the_last_one_goes_where_a_request_would_bring_it_back() -> None:
    story = Story(sleeps=True)
    used = story.go(60, IDLE._replace(live_tokens=1))
    assert used is not None
    assert used.instances == 1
    idle = story.go(400)
    assert idle is not None
    assert (idle.instances, idle.reason) == (0, "minimum")
