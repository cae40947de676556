"""The circuit breaker of one target: it opens after failures in a row, then allows one request as a probe.

                 failures in a row                open_s over, one request chosen
        closed --------------------> open ---------------------------------------> half open
          ^                           ^                                              |    |
          |                           +------------------ it failed -----------------+    |
          +----------------------------------------- it went well ------------------------+

Verdicts on the ends of requests (by `judge_status` and `router.scheduling.ticket.judge_end`):

    unreachable  no connection: the request is not to blame
    failure      death before the first byte or mid-stream, 500, 502, 504: the engine or the request is to blame
    neutral      503: the engine is full (as its queue limit intends), so a retry elsewhere is right and a breaker
                 would turn a short queue into an outage; 4xx: the engine's API server works, which does not show
                 whether the computing part works; the client left; the router's own deadline
    success      everything else

A client whose requests make engines fail must not make the fleet unavailable to other clients. So failures that the
request may have caused open the breaker only if they came from two clients, or if no other client was served within
`SERVED_S`: then no other client is harmed, and a broken engine is detected even if all requests come from one
address. The same rule applies in the half-open state, in which a client whose probe failed may not send the next
probe for `open_s`.

A target that is *stuck* (`progress.py`) has its breaker held open, for twice as long each time, up to `LONGEST_S`. Only
progress or a probe that went well closes it.
"""

from __future__ import annotations

from math import inf
from typing import Literal

BreakerState = Literal["closed", "open", "half_open", "stuck"]
Verdict = Literal["success", "neutral", "failure", "unreachable"]

FAILURE_STATUSES = frozenset((500, 502, 504))
SERVED_S = 60.0  # how long a good answer to another client counts in favour of the target
LONGEST_S = 60.0  # for which a stuck target is not probed; after as long a time without trouble it counts from anew


def judge_status(status: int | None) -> Verdict:
    """Return the verdict on an answer's status; None means that the engine died."""
    if status is None or status in FAILURE_STATUSES:
        return "failure"
    return "neutral" if 400 <= status < 500 or status == 503 else "success"


class CircuitBreaker:
    """A circuit breaker for one target. While it is not closed, it is a member of the fleet's set `not_closed`. In
    all methods `client` is None if it is unknown: all unknown clients count as one.
    """

    __slots__ = (
        "_failed_at",
        "_failed_client",
        "_failure_limit",
        "_failures",
        "_freed_at",
        "_held_s",
        "_not_closed",
        "_open_s",
        "_opened_at",
        "_probed_at",
        "_served",
        "_served_before",
        "_several_failed",
        "stuck",
        "times_opened",
        "unreachable",
    )

    def __init__(self, failures: int, open_s: float, not_closed: set[CircuitBreaker] | None = None) -> None:
        self._not_closed: set[CircuitBreaker] = set() if not_closed is None else not_closed
        self._failure_limit = failures
        self._open_s = open_s
        self._opened_at: float | None = None
        self.times_opened = 0  # for metrics
        self.reset()

    def reset(self) -> None:
        """Close the breaker: a new process answers at the target."""
        self._failures = 0  # failures in a row; since the breaker opened, if it is not closed
        self._failed_client: str | None = None  # the client of the last failure
        self._failed_at = -inf
        self._several_failed = False  # whether these failures are of several clients
        self._served: tuple[str | None, float] = None, -inf  # the last client with a good answer, and when
        self._served_before: tuple[str | None, float] = None, -inf  # the last other client with one, and when
        self._probed_at = -inf  # when the present probe was sent
        self.unreachable = False  # whether the target could not be reached, or was stuck, when the breaker opened
        self._held_s = self._open_s  # how long it is open before a probe
        self._freed_at = -inf  # when it last stopped being stuck
        self.stuck = False
        self._close()

    def allows(self, now: float, client: str | None = None) -> bool:
        """Return whether a request may go to the target. Changes nothing, as it is called for every candidate."""
        if self._opened_at is None:
            return True
        if now - self._opened_at < self._held_s or now - self._probed_at < self._held_s:
            return False
        return not self._failures or client != self._failed_client or now - self._failed_at >= self._open_s

    def on_request_sent(self, now: float) -> None:
        """Record that a request is sent to the target. If the breaker is half open, the request is the probe until
        it ends, but for at most `open_s`, since an answer may take many minutes.
        """
        if self._opened_at is not None and now - self._opened_at >= self._held_s:
            self._probed_at = now

    def on_request_end(self, verdict: Verdict, now: float, client: str | None = None) -> None:
        """Record that a request to the target has ended, with `verdict`. A request sent before the breaker opened
        may also close or reopen it, since its evidence is as good. A neutral end only permits another probe.
        """
        probing, self._probed_at = self._probed_at != -inf, -inf
        if verdict == "success":
            self._failures = 0
            if client != self._served[0]:
                self._served_before = self._served
            self._served = client, now
            if self.stuck and probing:
                self.on_progress(now)
            elif self._opened_at is not None and not self.stuck:
                self._close()
        elif verdict != "neutral" and not self.stuck:
            self._on_failure(verdict == "unreachable", now, client)

    def on_stuck(self, now: float) -> None:
        """Hold it open, because the target has work and makes no progress. No effect until it may be probed again."""
        if self.stuck and self._opened_at is not None and now - self._opened_at < self._held_s:
            return
        again = self.stuck or now - self._freed_at < LONGEST_S
        self._held_s = min(LONGEST_S, 2 * self._held_s) if again else self._open_s
        self._opened_at, self.unreachable, self.stuck = now, True, True
        self._failures = 0
        self._not_closed.add(self)
        self.times_opened += 1

    def on_progress(self, now: float) -> None:
        """Close it, if the target was stuck: it makes progress."""
        if self.stuck:
            self._freed_at = now
            self.stuck = False
            self._close()

    def _on_failure(self, unreachable: bool, now: float, client: str | None) -> None:
        self._several_failed = self._failures > 0 and (self._several_failed or client != self._failed_client)
        self._failures += 1
        self._failed_client, self._failed_at = client, now
        if self._opened_at is None and self._failures < self._failure_limit:
            return
        _, served_at = self._served if self._served[0] != client else self._served_before
        if unreachable or self._several_failed or now - served_at > SERVED_S:
            self._opened_at, self.unreachable, self._held_s = now, unreachable, self._open_s
            self._failures = 0  # the half-open state needs evidence of its own
            self._not_closed.add(self)
            self.times_opened += 1

    @property
    def is_open(self) -> bool:
        """Whether the breaker is open or half open."""
        return self._opened_at is not None

    @property
    def failed_client(self) -> str | None:
        """The client of the last failure."""
        return self._failed_client

    @property
    def several_failed(self) -> bool:
        """Whether the last failures were of several clients."""
        return self._several_failed

    def on_opened_elsewhere(self, client: str | None, several: bool, now: float) -> None:
        """Record that another router or worker opened its breaker of this target, after failures of `several`
        clients or only of `client`. In the latter case this breaker opens only if such failures here would open it.
        """
        if several and self._opened_at is None:
            self._opened_at, self.unreachable, self._held_s = now, False, self._open_s
            self._failed_client, self._failed_at, self._several_failed, self._failures = client, now, True, 0
            self._not_closed.add(self)
        elif self._opened_at is None:
            opened_before = self.times_opened
            self._failures, self._failed_client = max(self._failures, self._failure_limit - 1), client
            self._on_failure(False, now, client)
            self.times_opened = opened_before  # only the router whose breaker opened first counts it

    def on_closed_elsewhere(self) -> None:
        """Close it: the target answered another router or worker well."""
        self._failures = 0
        if not self.stuck:
            self._close()

    def detach(self) -> None:
        """Leave `not_closed` permanently: the target left the fleet, and later ends of requests do not matter."""
        self._not_closed.discard(self)
        self._not_closed = set()

    def _close(self) -> None:
        self._opened_at = None
        self._not_closed.discard(self)

    def state(self, now: float) -> BreakerState:
        """Return the state at `now`."""
        if self._opened_at is None:
            return "closed"
        if self.stuck:
            return "stuck"
        return "half_open" if now - self._opened_at >= self._held_s else "open"
