"""Keeps things that began together from staying together, without dice.

Multiples of the golden ratio, modulo 1, fill an interval evenly at every length of the sequence (Weyl's low
discrepancy sequence), so even a handful of instances are spread well, and the same start gives the same times.
"""

from __future__ import annotations

GOLDEN = 0.6180339887498949


class Jitter:
    def __init__(self) -> None:
        self._share = 0.0

    def share(self) -> float:
        """The next one in [0, 1)."""
        self._share = (self._share + GOLDEN) % 1.0
        return self._share

    def around(self, pause_s: float) -> float:
        """`pause_s`, a tenth less to a tenth more."""
        return pause_s * (0.9 + 0.2 * self.share())
