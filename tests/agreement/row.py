"""What a row of the table of agreement is: a published experiment, and lines that hold a figure of it against ours.

A row's module says in its docstring how the published experiment was set up, what of that is known, what is assumed,
and how it is mapped to a `Scenario`. A miss stays in the table, with the reason as far as it is known.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import msgspec


class Line(msgspec.Struct, frozen=True):
    """`low` and `high` bound what counts as agreement; both None: only for comparison. `why`: the reason of a miss."""

    what: str
    published: str
    ours: float | None
    low: float | None = None
    high: float | None = None
    why: str = ""
    unit: str = ""

    @property
    def within(self) -> bool | None:
        """None: there is no bar. What could not be measured is not within it."""
        if self.low is None and self.high is None:
            return None
        if self.ours is None:
            return False
        return (self.low is None or self.ours >= self.low) and (self.high is None or self.ours <= self.high)


def around(what: str, published: float, ours: float | None, share: float, why: str = "", unit: str = "") -> Line:
    """Within `share` of what was published: 0.25 is 25 % to either side."""
    low, high = published * (1 - share), published * (1 + share)
    return Line(what, f"{published:g}", ours, low, high, why, unit)


def factor(what: str, published: float, ours: float | None, times: float, why: str = "", unit: str = "") -> Line:
    """Within a factor of `times` of what was published, to either side."""
    return Line(what, f"{published:g}", ours, published / times, published * times, why, unit)


def order(what: str, *values: float | None) -> Line:
    """1 where the values rise strictly, as published, else 0."""
    known = [value for value in values if value is not None]
    rises = len(known) == len(values) and all(one < other for one, other in pairwise(known))
    return Line(what, "yes", float(rises), 1.0, 1.0, unit="yes/no")


class Row(NamedTuple):
    """`measure` is given whether it is to be reduced and a function that tells what is going on. `full_s` and
    `reduced_s`: CPU seconds, about. It raises WarmrouteError where it cannot be measured here.
    """

    name: str
    title: str
    measure: Callable[[bool, Callable[[str], None]], list[Line]]
    full_s: float
    reduced_s: float

    def takes_s(self, reduced: bool) -> float:
        return self.reduced_s if reduced else self.full_s


def ratio(first: float | None, second: float | None) -> float | None:
    return first / second if first is not None and second else None
