"""A retry budget for the whole router: a share of its requests, plus a burst.

Without a retry budget, retries would multiply the load of a failing fleet just when it can bear the least. The
budget is a token bucket filled by requests, not by time: an idle router saves nothing beyond the burst, and no
clock is needed (Finagle's `RetryBudget`).
"""

from __future__ import annotations


class RetryBudget:
    """Every request deposits `ratio` of a retry; at most `burst` retries are saved up."""

    def __init__(self, ratio: float, burst: int) -> None:
        self._ratio = ratio
        self._burst = float(burst)
        self._balance = float(burst)

    def deposit(self) -> None:
        """Count a first attempt."""
        self._balance = min(self._burst, self._balance + self._ratio)

    def try_withdraw(self) -> bool:
        """Take one retry from the budget; return whether there was one."""
        if self._balance < 1.0 - 1e-9:  # ten tenths make one
            return False
        self._balance -= 1.0
        return True
