"""How long requests waited, as a histogram in which every unit weighs the same, however many requests it made.

Buckets are 1 % wide, from 0.1 ms to most of a day; the last one holds what is slower than anything: failed, or hanging.
A client that left counts with the time that it stayed, which is the least that it would have waited.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import inf, log

FLOOR_MS = 0.1
RATIO = 1.01
BUCKETS = 2048
_PER_LOG = 1 / log(RATIO)


class LatencyHistogram:
    __slots__ = ("_lowest", "_weights", "units")

    def __init__(self) -> None:
        self._weights = [0.0] * (BUCKETS + 1)
        self._lowest = BUCKETS  # bucket with any weight: quantiles are looked for from there
        self.units = 0

    def add(self, waits_ms: Sequence[float]) -> None:
        """One unit's requests, at least one: ms; infinite where nothing came; negative where somebody left after so
        many ms.
        """
        weight = 1 / len(waits_ms)
        for wait_ms in waits_ms:
            bucket = _bucket(abs(wait_ms))
            self._weights[bucket] += weight
            if bucket < self._lowest:
                self._lowest = bucket
        self.units += 1

    def quantile(self, share: float) -> float | None:
        """Ms within which at least `share` of the weight was; infinite: of so many nothing came. None: no units yet."""
        if not self.units:
            return None
        wanted = share * self.units - 1e-9
        for bucket, weight in enumerate(accumulate(self._weights[self._lowest :]), self._lowest):
            if weight >= wanted:
                return FLOOR_MS * RATIO**bucket if bucket < BUCKETS else inf
        return inf  # sums of thirds may miss the whole by a rounding


def _bucket(wait_ms: float) -> int:
    """Bucket i ends with `FLOOR_MS * RATIO**i`."""
    if wait_ms <= FLOOR_MS:
        return 0
    return BUCKETS if wait_ms == inf else min(int(log(wait_ms / FLOOR_MS) * _PER_LOG) + 1, BUCKETS - 1)
