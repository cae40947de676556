"""How many retries the whole router may make: a share of its requests, plus a burst.

Without it a failing fleet gets its load multiplied just when it can bear it least. A token bucket filled by requests,
not by time: an idle router saves nothing up beyond the burst, and no clock is needed (Finagle's `RetryBudget`).
"""

from __future__ import annotations


class RetryBudget:
    """Every request pays in `ratio` of a retry; at most `burst` are saved up."""

    def __init__(self, ratio: float, burst: int) -> None:
        self._ratio = ratio
        self._burst = float(burst)
        self._saved = float(burst)

    def request(self) -> None:
        """One first attempt is made."""
        self._saved = min(self._burst, self._saved + self._ratio)

    def take(self) -> bool:
        """True: one retry may be made, and is paid for."""
        if self._saved < 1.0 - 1e-9:  # ten tenths make one
            return False
        self._saved -= 1.0
        return True
