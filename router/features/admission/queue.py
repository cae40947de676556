"""A first-come-first-served queue of requests that wait for admission, with an estimate of the wait.

The estimate follows the queue's own recent pace: position times the mean pause between the last admissions. While
nothing is admitted, the mean grows with the clock; before two admissions the wait is unknown. An empty queue drops
its history, because the pace of an earlier rush does not predict the next one.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

PACE_WINDOW = 32  # admissions that the estimate averages over

T = TypeVar("T")


class Pace:
    """The pace of admissions, from the times of the last ones."""

    def __init__(self) -> None:
        self._admitted_s: deque[float] = deque(maxlen=PACE_WINDOW)

    def add(self, now: float) -> None:
        self._admitted_s.append(now)

    def clear(self) -> None:
        self._admitted_s.clear()

    def expected_s(self, position: int, now: float) -> float | None:
        """Return the expected wait at `position` (from 1) in seconds; None if unknown."""
        if len(self._admitted_s) < 2 or now <= self._admitted_s[0]:
            return None
        return position * (now - self._admitted_s[0]) / (len(self._admitted_s) - 1)


class WaitQueue(Generic[T]):
    def __init__(self) -> None:
        self._waiting: OrderedDict[T, None] = OrderedDict()  # a dict finds its first key slowly after many deletions
        self._pace = Pace()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting)

    @property
    def first(self) -> T | None:
        return next(iter(self._waiting), None)

    def join(self, item: T) -> None:
        self._waiting[item] = None

    def admit(self, item: T, now: float) -> None:
        """Remove `item`, and count the admission for the pace."""
        self._pace.add(now)
        self.leave(item)

    def leave(self, item: T) -> None:
        """Remove `item`."""
        del self._waiting[item]
        if not self._waiting:
            self._pace.clear()

    def expected_s(self, position: int, now: float) -> float | None:
        """Return the expected wait at `position` (from 1) in seconds; None if unknown."""
        return self._pace.expected_s(position, now)
