"""Time as an argument: the only module (beside the composition root) that reads the machine's clocks.

Everything that thinks takes a `Clock`, so tests and the simulator can hold time still. `now` is monotonic and only
good for differences; `wall` is seconds since the epoch, for people and for timestamps that engines send.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Monotonic seconds."""

    def wall(self) -> float:
        """Seconds since the epoch."""


class SystemClock:
    now = staticmethod(time.monotonic)
    wall = staticmethod(time.time)


class ManualClock:
    """Stands still until told: for tests and virtual time."""

    def __init__(self, now: float = 0.0, wall: float = 0.0) -> None:
        self._now = now
        self._offset = wall - now

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._offset

    def advance(self, seconds: float) -> None:
        self._now += seconds
