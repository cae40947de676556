"""The circuit breaker of one target: opens after failures in a row, then lets one request through as a probe.

                 failures in a row                open_s over, one request chosen
        closed --------------------> open ---------------------------------------> half open
          ^                           ^                                              |    |
          |                           +------------------ it failed -----------------+    |
          +----------------------------------------- it went well ------------------------+

Classification of ends (`judge_status` is the only place that decides it):

    failure   no connection, died before its first byte or mid-stream, 500, 502, 504
    neutral   503: the engine is full (its queue limit says so on purpose), a retry elsewhere is right and a breaker
              would turn a short queue into an outage; the client left; the router's own deadline
    success   everything else, including every 4xx: the engine is well enough to reject the request
"""

from __future__ import annotations

from typing import Literal

BreakerState = Literal["closed", "open", "half_open"]
Verdict = Literal["success", "neutral", "failure"]

FAILURE_STATUSES = frozenset((500, 502, 504))


def judge_status(status: int | None) -> Verdict:
    """Return the verdict on an answer's status; None means the engine could not be reached or died."""
    if status is None or status in FAILURE_STATUSES:
        return "failure"
    return "neutral" if status == 503 else "success"


class CircuitBreaker:
    """A circuit breaker for one target. It is a member of the set `not_closed` (the fleet's) while it is not closed."""

    __slots__ = ("_failure_limit", "_failures", "_not_closed", "_open_s", "_opened_at", "_probing", "times_opened")

    def __init__(self, failures: int, open_s: float, not_closed: set[CircuitBreaker] | None = None) -> None:
        self._not_closed: set[CircuitBreaker] = set() if not_closed is None else not_closed
        self._failure_limit = failures
        self._open_s = open_s
        self._failures = 0
        self._opened_at: float | None = None
        self._probing = False  # the one request of the half-open state is in flight
        self.times_opened = 0  # for metrics

    def allows(self, now: float) -> bool:
        """Return whether a request may go to the target. Changes nothing: it is called for every candidate."""
        return self._opened_at is None or (not self._probing and now - self._opened_at >= self._open_s)

    def on_request_sent(self) -> None:
        """Note that a request that `allows` permitted was sent to the target."""
        self._probing = self._opened_at is not None

    def on_request_end(self, verdict: Verdict, now: float) -> None:
        """Note that a request to the target has ended, with `verdict`. A request sent before the breaker opened may
        close or reopen it as well: its evidence is as good. A neutral end only permits another probe.
        """
        self._probing = False
        if verdict == "success":
            self._failures = 0
            if self._opened_at is not None:
                self._close()
        elif verdict == "failure":
            self._failures += 1
            if self._opened_at is not None or self._failures >= self._failure_limit:
                self._opened_at = now
                self._not_closed.add(self)
                self.times_opened += 1

    def reset(self) -> None:
        """Close the breaker: a new process answers at the target."""
        self._failures = 0
        self._probing = False
        self._close()

    def detach(self) -> None:
        """Leave `not_closed` for good: the target left the fleet, and requests that still end there do not matter."""
        self._not_closed.discard(self)
        self._not_closed = set()

    def _close(self) -> None:
        self._opened_at = None
        self._not_closed.discard(self)

    def state(self, now: float) -> BreakerState:
        """Return the state at `now`."""
        if self._opened_at is None:
            return "closed"
        return "half_open" if self._probing or now - self._opened_at >= self._open_s else "open"
