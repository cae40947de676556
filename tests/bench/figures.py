"""The benchmark's arithmetic and values: medians with their spread, quantiles, bars and whether they are met.

Pure. A `Line` is one line of the table: our measurements and a peer's, repetition by repetition, and the bar that they
are judged by. Ratios are of values of the same repetition, which saw the same machine.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

import msgspec


class Bar(msgspec.Struct, frozen=True):
    """A limit. `sense` `<=`: at most. `of`: our figure, or the ratio. `take` "worst": every repetition must meet it."""

    limit: float
    of: Literal["ours", "ratio"] = "ours"
    sense: Literal["<=", ">="] = "<="
    take: Literal["median", "worst"] = "median"


class Line(msgspec.Struct, frozen=True):
    """One line: `ours`, `theirs` and `ratios` by repetition, in `unit`; without a bar it is only for comparison.

    `pure` and `pure_ratios`: the same of the pure build, where `ours` is the compiled one's; empty if not measured.
    """

    what: str
    unit: str
    ours: list[float]
    theirs: list[float] = []
    peer: str = ""
    ratios: list[float] = []
    bar: Bar | None = None
    pure: list[float] = []
    pure_ratios: list[float] = []

    @property
    def judged(self) -> float | None:
        """The value that the bar is compared with; `None` without a bar or without measurements."""
        if self.bar is None:
            return None
        values = self.ours if self.bar.of == "ours" else self.ratios
        if not values:
            return None
        if self.bar.take == "worst":
            return max(values) if self.bar.sense == "<=" else min(values)
        return statistics.median(values)

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; `None` when there is nothing to judge."""
        if self.bar is None or (value := self.judged) is None:
            return None
        return value <= self.bar.limit if self.bar.sense == "<=" else value >= self.bar.limit


def beside(
    what: str, unit: str, ours: Sequence[float], theirs: Sequence[float], peer: str, bar: Bar | None = None
) -> Line:
    """Return a line with ours over theirs, or theirs over ours where the bar wants a ratio of at least so much."""
    pairs = list(zip(ours, theirs, strict=False))
    turned = bar is not None and bar.of == "ratio" and bar.sense == ">="
    ratios = [b / a if turned else a / b for a, b in pairs if (a if turned else b)]
    return Line(what, unit, list(ours), list(theirs), peer, ratios, bar)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the nearest-rank quantile. Raises ValueError without values."""
    if not values:
        raise ValueError("no values")
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def spread(values: Sequence[float]) -> str:
    """Return "median (lowest-highest)", with as many digits as the median deserves; "-" without values."""
    if not values:
        return "-"
    middle = statistics.median(values)
    digits = 0 if abs(middle) >= 100 or not any(values) else 1 if abs(middle) >= 10 else 2
    low, high = (f"{value:,.{digits}f}" for value in (min(values), max(values)))
    shown = f"{middle:,.{digits}f}"
    return shown if len(values) == 1 or low == high == shown else f"{shown} ({low}-{high})"
