"""The circuit breaker of one target: after failures in a row it is left alone for a while, then tried with one request.

                 failures in a row                open_s over, one request chosen
        closed --------------------> open ---------------------------------------> half open
          ^                           ^                                              |    |
          |                           +------------------ it failed -----------------+    |
          +----------------------------------------- it went well ------------------------+

What counts (`verdict` below is the only place that says so):
    failure   no connection, died before its first byte or mid-stream, 500, 502, 504
    neutral   503: the engine is full (its queue limit says so on purpose), a retry elsewhere is right and a breaker
              would turn a short queue into an outage; the client went away; our own deadline
    success   everything else, every 4xx included: the engine is well enough to find fault with the client
"""

from __future__ import annotations

from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]
Verdict = Literal["success", "neutral", "failure"]

FAILURE_STATUSES = frozenset((500, 502, 504))


def judge_status(status: int | None) -> Verdict:
    """Of an answer's status; None: there was none, because the engine could not be reached or died."""
    if status is None or status in FAILURE_STATUSES:
        return "failure"
    return "neutral" if status == 503 else "success"


class CircuitBreaker:
    """`not_closed`: a set, of the fleet say, that has this breaker in it as long as it is not closed."""

    __slots__ = ("_failures", "_not_closed", "_open_s", "_opened_at", "_row", "_trial", "times_opened")

    def __init__(self, failures: int, open_s: float, not_closed: set[CircuitBreaker] | None = None) -> None:
        self._not_closed: set[CircuitBreaker] = set() if not_closed is None else not_closed
        self._failures = failures
        self._open_s = open_s
        self._row = 0  # failures in a row
        self._opened_at: float | None = None
        self._trial = False  # the one request of the half-open state is under way
        self.times_opened = 0  # how often, for metrics

    def allows(self, now: float) -> bool:
        """May a request go there? Asked of every candidate, so it changes nothing."""
        return self._opened_at is None or (not self._trial and now - self._opened_at >= self._open_s)

    def on_request_sent(self) -> None:
        """A request that `lets` allowed was chosen to go there."""
        self._trial = self._opened_at is not None

    def on_request_end(self, verdict: Verdict, now: float) -> None:
        """A request that went there has ended. One sent before the breaker opened may close or renew it as well:
        its evidence is as good. A neutral end only makes room for another trial.
        """
        self._trial = False
        if verdict == "success":
            self._row = 0
            if self._opened_at is not None:
                self._close()
        elif verdict == "failure":
            self._row += 1
            if self._opened_at is not None or self._row >= self._failures:
                self._opened_at = now
                self._not_closed.add(self)
                self.times_opened += 1

    def reset(self) -> None:
        """A new process answers there: what the old one did is past."""
        self._row = 0
        self._trial = False
        self._close()

    def detach(self) -> None:
        """Its target left the fleet: what still ends there is nobody's concern."""
        self._not_closed.discard(self)
        self._not_closed = set()

    def _close(self) -> None:
        self._opened_at = None
        self._not_closed.discard(self)

    def state(self, now: float) -> BreakerState:
        if self._opened_at is None:
            return "closed"
        return "half_open" if self._trial or now - self._opened_at >= self._open_s else "open"
