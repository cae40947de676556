"""Virtual time: a heap of scheduled calls, which may schedule more.

Calls at the same time run in the order in which they were scheduled, so a simulation repeats exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from router.clock import ManualClock


class EventQueue:
    """Scheduled calls, and the clock that moves from one to the next."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    @property
    def now_s(self) -> float:
        return self.clock.now()

    def at(self, time_s: float, call: Callable[..., None], *arguments: Any) -> None:
        """Schedule `call(*arguments)`; a time that has passed means now."""
        heappush(self._heap, (time_s, next(self._order), call, arguments))

    def step(self) -> bool:
        """Run the next call. Return False when there is none."""
        if not self._heap:
            return False
        at_s, _, call, arguments = heappop(self._heap)
        self.clock.advance(max(0.0, at_s - self.clock.now()))
        call(*arguments)
        return True
