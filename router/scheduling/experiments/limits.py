"""Limits: absolute bounds on an arm's requests, which take effect at once.

Unlike the comparison with the first arm, limits judge every request and do not wait for units to end: a bad arm
also harms the other arms, through shared queues. Requests are judged in order of arrival; otherwise quick failures
would be counted before the slower good answers beside them. No request is waited for longer than the limit itself,
or `GRACE_S`. The requests that arrived in one second are one value y, the share of bad requests among them, so
requests that fail together (forty on an engine that dies) are one piece of evidence. Against the bound q,

    R <- (R + 1) (1 + b D),   D = (y - q) / q,   averaged over several b

is the Shiryaev-Roberts detector in its form for bounded values (Shin, Ramdas and Rinaldo 2024): while y is expected
to be at most q, R grows by no more than 1 a second on average, so the first false alarm comes after no less than
`ALARM` seconds with requests, on average (11 days right at the bound, far longer below it). If all requests are
bad, the alarm comes after 8 s at a bound of 10 %, 6 s at 5 %, 4 s at 1 %. With several routers, each of which
judges its own requests, R is the mean over the routers, so there are no more false alarms than with one router.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Literal

from router.scheduling.experiments.counts import LimitCounts
from router.scheduling.experiments.e_process import BETS
from router.scheduling.experiments.unit import ExperimentUnit, first_byte_ms, has_failed, is_counted
from router.scheduling.policy.record import Record

ALARM = 1e6  # s
GRACE_S = 10.0  # a request that runs longer counts as good until it fails

Judgement = Literal["bad", "good", "skip", "wait"]


class LimitedRequest:
    """A request on an arm, until all limits have judged it."""

    __slots__ = ("arm", "counted_good", "ended", "record", "unit")

    def __init__(self, arm: int, unit: ExperimentUnit | None, record: Record) -> None:
        self.arm = arm
        self.unit = unit  # None if the request's unit does not count (any more)
        self.record = record
        self.ended = False
        self.counted_good = False  # counted as good while it ran


def judge_ttft(limited: LimitedRequest, now_s: float, most_ms: float) -> Judgement:
    """Judge whether the request waited, or waits, longer than `most_ms` for its first byte."""
    record = limited.record
    if not is_counted(record):
        return "skip"
    if limited.ended:
        wait_ms = first_byte_ms(record)
        if -most_ms <= wait_ms < 0:
            return "skip"  # the client left earlier
        return "bad" if abs(wait_ms) > most_ms else "good"
    if record.ttft_ms is not None:
        return "bad" if record.ttft_ms > most_ms else "good"
    return "bad" if (now_s - record.arrived_s) * 1e3 > most_ms else "wait"


def judge_failure(limited: LimitedRequest, now_s: float) -> Judgement:
    """Judge whether the request failed; a request that runs for `GRACE_S` counts as good until it fails."""
    record = limited.record
    if not limited.ended:
        limited.counted_good = now_s - record.arrived_s > GRACE_S
        return "good" if limited.counted_good else "wait"
    if has_failed(record):
        return "bad"
    return "good" if is_counted(record) and record.status is not None else "skip"


class ArmLimit:
    """A limit on one arm: at most the share `most` (in (0, 1)) of its requests may be bad according to `judge`."""

    __slots__ = (
        "_arrived",
        "_bad",
        "_good",
        "_judge",
        "_most",
        "_others",
        "_queue",
        "_stakes",
        "alarmed",
        "bad",
        "evidence",
        "requests",
    )

    def __init__(self, most: float, judge: Callable[[LimitedRequest, float], Judgement]) -> None:
        self._most = most
        self._judge = judge
        self._stakes = [0.0] * len(BETS)
        self._queue: deque[LimitedRequest] = deque()
        self._arrived = 0  # the second whose requests are being counted
        self._bad = self._good = 0  # of that second
        self.requests = 0
        self.bad = 0
        self.evidence = 0.0
        self.alarmed = False
        self._others: Sequence[LimitCounts] = ()

    def counts(self) -> LimitCounts:
        """Return the counts of this router."""
        return LimitCounts(self.evidence, self.requests, self.bad)

    def set_others(self, others: Sequence[LimitCounts]) -> None:
        """Set the counts of the other running routers."""
        self._others = others

    @property
    def total(self) -> LimitCounts:
        """Counts of all routers, and their mean evidence."""
        of_all = (self.counts(), *self._others)
        evidence = sum(each.evidence for each in of_all) / len(of_all)
        return LimitCounts(evidence, sum(each.requests for each in of_all), sum(each.bad for each in of_all))

    def add(self, limited: LimitedRequest) -> None:
        self._queue.append(limited)

    def add_late_failure(self) -> None:
        """Count the failure of a request that was already counted as good."""
        self._bad += 1

    def poll(self, now_s: float) -> bool:
        """Judge the requests that can be judged by now. Returns True if the arm must be excluded."""
        while self._queue and (judgement := self._judge(self._queue[0], now_s)) != "wait":
            second = int(self._queue.popleft().record.arrived_s)
            if second != self._arrived:
                self._count()
                self._arrived = second
            self._bad += judgement == "bad"
            self._good += judgement == "good"
        if int(now_s) > self._arrived and not (self._queue and int(self._queue[0].record.arrived_s) == self._arrived):
            self._count()
        return self.alarmed

    def _count(self) -> None:
        """Add the evidence of a second whose requests have all been judged."""
        if not (requests := self._bad + self._good):
            return
        gain = (self._bad / requests - self._most) / self._most
        self._stakes = [(stake + 1) * (1 + bet * gain) for bet, stake in zip(BETS, self._stakes, strict=True)]
        self.evidence = sum(self._stakes) / len(BETS)
        self.alarmed = self.alarmed or self.total.evidence >= ALARM
        self.requests += requests
        self.bad += self._bad
        self._bad = self._good = 0
