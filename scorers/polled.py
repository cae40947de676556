"""Gauges as engines last told them, for scorers that must compare all rows: silence must not look idle.

A row whose engine has not told, or told too long ago, is taken for an average one of those that did; if none did, there
is nothing to compare, and all are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum

from scorers.contract import Load


def check_stale_s(stale_s: float) -> None:
    if stale_s <= 0:
        raise ValueError(f"stale_s: an age above 0 s, not {stale_s}")


def read_gauge(loads: Sequence[Load], gauge: Callable[[Load], float | None], stale_s: float) -> list[float]:
    """One gauge of every load; where it is None or older than `stale_s`, the mean of the others."""
    values = [gauge(load) if (age_s := load.metrics_age_s) is not None and age_s <= stale_s else None for load in loads]
    return fill_missing(values) if None in values else values  # type: ignore[return-value]


def fill_missing(values: Sequence[float | None]) -> list[float]:
    """The mean of the others where a value is None; if all are, 0."""
    told = [value for value in values if value is not None]
    typical = fsum(told) / len(told) if told else 0.0
    return [typical if value is None else value for value in values]
