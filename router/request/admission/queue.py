"""One line of those who wait at the door: first come, first served, and how long it takes to get in.

How long: the line's own recent pace. So many were let in since the oldest of the last few, so whoever stands at place n
waits n times the mean pause between two of them. While nobody is let in that mean grows by itself; before two were, the
wait is unknown. A line that has run empty forgets its pace: what it was in another rush hour says nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from typing import Generic, TypeVar

PACE_OF = 32  # the last ones let in

T = TypeVar("T")


class WaitQueue(Generic[T]):
    def __init__(self) -> None:
        self._waiting: OrderedDict[T, None] = OrderedDict()  # a dict finds its first key slowly after many deletions
        self._let_in_s: deque[float] = deque(maxlen=PACE_OF)

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting)

    @property
    def first(self) -> T | None:
        return next(iter(self._waiting), None)

    def join(self, who: T) -> None:
        self._waiting[who] = None

    def let_in(self, who: T, now: float) -> None:
        self._let_in_s.append(now)
        self.leave(who)

    def leave(self, who: T) -> None:
        """Let in or not, it waits no more."""
        del self._waiting[who]
        if not self._waiting:
            self._let_in_s.clear()

    def expected_s(self, position: int, now: float) -> float | None:
        """The wait at that place, the first being 1; None: unknown."""
        if len(self._let_in_s) < 2 or now <= self._let_in_s[0]:
            return None
        return position * (now - self._let_in_s[0]) / (len(self._let_in_s) - 1)
