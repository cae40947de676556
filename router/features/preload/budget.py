"""Budget of preloading: a share of the fleet's prefill time, on average.

An engine has one second of prefill time per second. A share of the time of all engines is saved up, for a minute at
most, so that an engine that joins after a calm time gets its prefixes at once. A prefix may be sent while anything
is left, and is then charged in full: so a prefix may cost more than is saved, and the next one waits longer.
"""

from __future__ import annotations

SAVED_S = 60.0


class PreloadBudget:
    """Budget of `share` of the prefill time of all engines."""

    def __init__(self, share: float) -> None:
        self._share = share
        self._saved_ms = 0.0
        self._at: float | None = None

    def saved_ms(self, engines: int, now: float) -> float:
        """Return the saved prefill time; below 0 if time was taken in advance. `engines` is how many get requests
        now.
        """
        per_s = 1e3 * self._share * engines
        if self._at is not None:
            self._saved_ms = min(self._saved_ms + per_s * (now - self._at), per_s * SAVED_S)
        self._at = now
        return self._saved_ms

    def charge(self, price_ms: float) -> None:
        """Subtract the price of a prefix that is sent."""
        self._saved_ms -= price_ms
