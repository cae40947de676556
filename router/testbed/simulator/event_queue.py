"""Virtual time: moments in a heap, each with what happens then. Whatever happens may put more of them there.

Moments at the same time come in the order in which they were put there, so the same simulation is always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any

from router.clock import ManualClock


class EventQueue:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._order = count()

    @property
    def now_s(self) -> float:
        return self.clock.now()

    def at(self, moment_s: float, what: Callable[..., None], *of: Any) -> None:
        """`what(*of)` happens then. Moments that have passed come at once."""
        heappush(self._heap, (moment_s, next(self._order), what, of))

    def step(self) -> bool:
        """The next one happens. False: there is none."""
        if not self._heap:
            return False
        at_s, _, what, of = heappop(self._heap)
        self.clock.advance(max(0.0, at_s - self.clock.now()))
        what(*of)
        return True
