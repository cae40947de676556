"""The lazy deadline, on a loop whose clock is turned by hand."""

from __future__ import annotations

from collections.abc import Callable

from router.proxy.timer import DeadlineTimer


class Handle:
    cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Loop:
    def __init__(self) -> None:
        self.now = 0.0
        self.armed: list[tuple[float, Callable[[], None], Handle]] = []

    def time(self) -> float:
        return self.now

    def call_at(self, when: float, callback: Callable[[], None]) -> Handle:
        handle = Handle()
        self.armed.append((when, callback, handle))
        return handle

    def turn(self, to: float) -> None:
        self.now = to
        due = [entry for entry in self.armed if entry[0] <= to]
        self.armed = [entry for entry in self.armed if entry[0] > to]
        for _, callback, handle in due:
            if not handle.cancelled:
                callback()


def late_after(loop: Loop) -> tuple[DeadlineTimer, list[float]]:
    strikes: list[float] = []
    return DeadlineTimer(loop, lambda: strikes.append(loop.now)), strikes


def test_it_strikes_once():
    loop = Loop()
    timer, strikes = late_after(loop)
    timer.set(2)
    loop.turn(1)
    assert strikes == []
    loop.turn(2)
    loop.turn(9)
    assert strikes == [2]


def test_moving_it_later_arms_nothing_new():
    loop = Loop()
    timer, strikes = late_after(loop)
    for second in range(5):
        loop.now = float(second)
        timer.set(10)
    assert len(loop.armed) == 1
    loop.turn(10)
    assert strikes == []
    loop.turn(14)
    assert strikes == [14]


def test_moving_it_earlier_strikes_earlier():
    loop = Loop()
    timer, strikes = late_after(loop)
    timer.set(10)
    timer.set(2)
    loop.turn(2)
    loop.turn(10)
    assert strikes == [2]


def test_off_and_close():
    loop = Loop()
    timer, strikes = late_after(loop)
    timer.set(1)
    timer.clear()
    loop.turn(1)
    timer.set(1)
    timer.close()
    loop.turn(3)
    assert strikes == []


def test_closed_it_is_not_armed_again():
    loop = Loop()
    timer, _ = late_after(loop)
    timer.set(1)
    timer.close()
    armed = len(loop.armed)
    timer.set(1)
    assert len(loop.armed) == armed
