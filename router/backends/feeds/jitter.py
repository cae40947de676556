"""Deterministic jitter: spreads periodic work that started at the same time.

Multiples of the golden ratio, modulo 1, fill an interval evenly at every length of the sequence (Weyl's low
discrepancy sequence), so even a handful of instances are spread well, and the same start gives the same times.
"""

from __future__ import annotations

GOLDEN = 0.6180339887498949


class Jitter:
    """A sequence of evenly spread values. Sequences of several processes differ by their `start` in [0, 1)."""

    def __init__(self, start: float = 0.0) -> None:
        self._share = start

    def share(self) -> float:
        """Return the next value in [0, 1)."""
        self._share = (self._share + GOLDEN) % 1.0
        return self._share

    def around(self, pause_s: float) -> float:
        """Return `pause_s` plus or minus up to a tenth."""
        return pause_s * (0.9 + 0.2 * self.share())
