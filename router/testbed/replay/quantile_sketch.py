"""Quantiles of differences, in bounded memory: buckets 2 % wide on either side of zero.

A difference of a millisecond or an hour lands in a bucket of its own order of magnitude (as in DDSketch, Masson, Rim &
Lee, VLDB 2019), so an answer is within 1 % of the true one whatever the scale. What is below `FLOOR` is zero; the
magnitudes of all floats fit into some 36,000 buckets, those of a million real differences into a few hundred.
"""

from __future__ import annotations

from collections import Counter
from math import ceil, log

FLOOR = 1e-3
RATIO = 1.02
_PER_LOG = 1 / log(RATIO)


class QuantileSketch:
    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._many = 0

    def add(self, value: float) -> None:
        """A finite number."""
        self._counts[_bucket(value)] += 1
        self._many += 1

    def at(self, share: float) -> float | None:
        """The least number that at least this share (0 to 1) of all lies at or below; None: there are none."""
        if not self._many:
            return None
        wanted, seen = max(1, ceil(share * self._many)), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= wanted:
                return _middle(bucket)
        raise AssertionError("the counts add up to all")


def _bucket(value: float) -> int:
    """0 for zero; 1, 2, ... upwards from FLOOR; -1, -2, ... downwards from -FLOOR."""
    size = abs(value)
    if size <= FLOOR:
        return 0
    number = int(log(size / FLOOR) * _PER_LOG) + 1
    return number if value > 0 else -number


def _middle(bucket: int) -> float:
    if bucket == 0:
        return 0.0
    size: float = FLOOR * RATIO ** (abs(bucket) - 0.5)
    return size if bucket > 0 else -size
