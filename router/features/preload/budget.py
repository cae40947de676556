"""Budget of preloading: a share of the fleet's prefill time, on average.

An engine has a second of prefill per second. A share of what all engines have is saved up, for a minute at most, so
that an engine that joins after a calm time gets its prefixes at once. A prefix may be begun while anything is left,
and is then charged whole: so a prefix may be longer than what is saved, and the next one waits the longer.
"""

from __future__ import annotations

SAVED_S = 60.0


class PreloadBudget:
    """`share` of the prefill time of all engines."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved_ms = 0.0
        self._at: float | None = None

    def saved_ms(self, engines: int, now: float) -> float:
        """Return the prefill time that is saved; below 0, what was taken in advance. `engines` get requests now."""
        per_s = 1e3 * self._share * engines
        if self._at is not None:
            self._saved_ms = min(self._saved_ms + per_s * (now - self._at), per_s * SAVED_S)
        self._at = now
        return self._saved_ms

    def charge(self, price_ms: float) -> None:
        """Take the price of a prefix that is sent."""
        self._saved_ms -= price_ms
