"""A sliding window of 60 s over charges, so that the charges of any 60 s never exceed the limit.

Charges are gathered in slices of at most 50 ms, so that a window has 1,200 entries and not one per request. A slice
leaves as a whole when its newest charge is 60 s old: a charge counts for 60 to 60.05 s, never for less. (A token
bucket would be cheaper, but lets twice the limit pass within a minute.) The module is pure: the time is an
argument, and must not go back.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator

WINDOW_S = 60.0
SLICE_S = 0.05


class Slice:
    """Charges that leave the window together."""

    __slots__ = ("amount", "began_s", "left", "newest_s")

    def __init__(self, now: float) -> None:
        self.amount = 0
        self.began_s = now
        self.newest_s = now
        self.left = False  # the window


class SlidingWindow:
    """The charges of the last 60 s. `total` is their sum as of the last `advance` or `charge`."""

    __slots__ = ("_slices", "total")

    def __init__(self) -> None:
        self._slices: deque[Slice] = deque()
        self.total = 0

    def advance(self, now: float) -> int:
        """Drop the slices that have left by `now`; return the total of the rest."""
        slices = self._slices
        while slices and now - slices[0].newest_s >= WINDOW_S:
            oldest = slices.popleft()
            oldest.left = True
            self.total -= oldest.amount
        return self.total

    def charge(self, amount: int, now: float) -> Slice:
        """Add a charge; return its slice, through which the charge can be corrected."""
        self.advance(now)
        if not self._slices or now - self._slices[-1].began_s > SLICE_S:
            self._slices.append(Slice(now))
        newest = self._slices[-1]
        newest.newest_s = now
        newest.amount += amount
        self.total += amount
        return newest

    def correct(self, charged: Slice, amount: int, now: float) -> bool:
        """Add `amount`, which may be negative, to a slice; return False, and change nothing, if the slice has left
        the window.
        """
        self.advance(now)
        if charged.left:
            return False
        charged.amount += amount
        self.total += amount
        return True

    def give_back(self, amount: int, now: float) -> None:
        """Subtract `amount` from the oldest charges: the rest counts longer than necessary, not shorter."""
        self.advance(now)
        for one in self._slices:
            taken = min(amount, one.amount)
            one.amount -= taken
            self.total -= taken
            amount -= taken
            if not amount:
                return

    def __iter__(self) -> Iterator[Slice]:
        """Iterate over the slices, the oldest first."""
        return iter(self._slices)

    def empty_s(self, now: float) -> float:
        """Return the seconds until the window is empty, if nothing is added."""
        return max(0.0, self._slices[-1].newest_s + WINDOW_S - now) if self._slices else 0.0


def count_charged(windows: Iterable[SlidingWindow], now: float) -> int:
    """Return the charges of the last 60 s in all windows."""
    found = 0
    for window in windows:
        found += window.advance(now)
    return found


def find_room_s(windows: Iterable[SlidingWindow], excess: int, now: float) -> float | None:
    """Return the seconds until `excess` has left the windows together; None if they contain less than `excess`."""
    for oldest in heapq.merge(*windows, key=lambda one: one.newest_s):
        excess -= oldest.amount
        if excess <= 0:
            return max(0.0, oldest.newest_s + WINDOW_S - now)
    return None
