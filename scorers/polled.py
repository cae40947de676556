"""Engine gauges for scorers that compare all rows, with gaps filled in: an engine that reports nothing must not
look idle.

A row whose engine has not reported a gauge, or reported it too long ago, gets the average of the rows that have
one. If no row has one, there is nothing to compare, and all are 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import fsum

from scorers.contract import Load


def read_gauge(loads: Sequence[Load], gauge: Callable[[Load], float | None], stale_s: float) -> list[float]:
    """Return one gauge of every load. A gauge that is None or older than `stale_s` is replaced by the mean of the
    others.
    """
    return fill_missing(
        [gauge(load) if (age_s := load.metrics_age_s) is not None and age_s <= stale_s else None for load in loads]
    )


def fill_missing(values: list[float | None]) -> list[float]:
    """Return `values` with each None replaced by the mean of the others; if all are None, by 0."""
    known = [value for value in values if value is not None]
    if len(known) == len(values):  # the usual case
        return known
    typical = fsum(known) / len(known) if known else 0.0
    return [typical if value is None else value for value in values]
