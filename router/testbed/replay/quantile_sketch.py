"""Quantiles of differences, in bounded memory: buckets 2 % wide on either side of zero.

A difference of a millisecond or an hour falls into a bucket of its own order of magnitude (as in DDSketch, Masson, Rim
& Lee, VLDB 2019), so a quantile is within 1 % of the true one at any scale. Values below `FLOOR` count as zero; the
magnitudes of all floats fit into some 36,000 buckets, those of a million real differences into a few hundred.
"""

from __future__ import annotations

from collections import Counter
from math import ceil, log

FLOOR = 1e-3
RATIO = 1.02
_PER_LOG = 1 / log(RATIO)


class QuantileSketch:
    """Counts per bucket, from which quantiles are read."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()
        self._count = 0

    def add(self, value: float) -> None:
        """Add a finite number."""
        self._counts[_bucket(value)] += 1
        self._count += 1

    def at(self, share: float) -> float | None:
        """Return the least value that at least `share` (0 to 1) of all values do not exceed; None without values."""
        if not self._count:
            return None
        needed, seen = max(1, ceil(share * self._count)), 0
        for bucket in sorted(self._counts):
            seen += self._counts[bucket]
            if seen >= needed:
                return _middle(bucket)
        raise AssertionError("the counts add up to all")


def _bucket(value: float) -> int:
    """Return 0 for zero; 1, 2, ... upwards from FLOOR; -1, -2, ... downwards from -FLOOR."""
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
