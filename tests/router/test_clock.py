"""Time as an argument."""

from __future__ import annotations

import time

from router.clock import Clock, ManualClock, SystemClock


def test_the_manual_clock_stands_still_until_told() -> None:
    clock = ManualClock(10.0, wall=1_700_000_000.0)
    assert (clock.now(), clock.wall()) == (10.0, 1_700_000_000.0)
    assert (clock.now(), clock.wall()) == (10.0, 1_700_000_000.0)
    clock.advance(2.5)
    assert (clock.now(), clock.wall()) == (12.5, 1_700_000_002.5)


def test_the_systems_clock_is_the_machines() -> None:
    clock: Clock = SystemClock()
    before, before_wall = time.monotonic(), time.time()
    assert before <= clock.now() <= time.monotonic()
    assert before_wall - 1 <= clock.wall() <= time.time() + 1
