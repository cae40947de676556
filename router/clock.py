"""Clocks, passed as arguments. Apart from the composition root, only this module reads the machine's clocks.

Every part that makes decisions takes a `Clock`, so that tests and the simulator control time.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds, meaningful only as differences."""

    def wall(self) -> float:
        """Seconds since the epoch, for people and for comparison with timestamps of engines."""


class SystemClock:
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class ManualClock:
    """A clock that moves only through `advance`, for tests and virtual time."""

    def __init__(self, now: float = 0.0, wall: float = 0.0) -> None:
        self._now = now
        self._offset = wall - now

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._offset

    def advance(self, seconds: float) -> None:
        self._now += seconds
