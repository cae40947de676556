"""The outcome of a game day: each fault's figures, and which of its bounds they break. Pure functions.

A fault is judged from its begin until the begin of the next one, or the end of the load, by the requests of the
load that ended in that time (not those of a flood, nor those whose clients hang up):

    failed       requests without a complete answer, except those beyond a limit of their tenant (429)
    p99_s        time to first token, 99th percentile of the answers
    longest_s    the longest that a client waited for its first token or for the next one
    hit_share    share of the prompt tokens that engines found in their caches
    notice_s     from the begin until the router's metrics show the fault; None: they never did
    recover_s    from the fault's end until the last sign of it: metrics that are not as before the fault, or a
                 second with a failure or with a median time to first token above twice that of the calm before the
                 first fault plus 100 ms; None: not before the next fault
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from router.config.sections.gameday import FaultKind, GamedayBounds
from router.lab.gameday.reading import NOTICED_BY, MetricsReading, is_well
from router.lab.loadgen.load import SentRequest
from router.lab.loadgen.report import compute_hit_share
from router.lab.simulator.outcome import quantile

CALM = "calm"  # name of the time before the first fault
BEYOND_LIMIT = 429  # status of a request that its tenant's limits do not allow
SLOW_FACTOR = 2.0
SLOW_S = 0.1  # a busy machine may raise a median by this much on its own


class PlayedFault(NamedTuple):
    """A fault as it was played. Times are seconds since the load began, by the clock that also timed the
    requests.
    """

    fault: FaultKind
    detail: str  # what was done to whom
    began_s: float
    ended_s: float
    bounds: GamedayBounds
    clients: int  # of the load: the most requests that the routers may have booked when nobody else sends


class Look(NamedTuple):
    """The router's metrics at a moment; None: it did not answer."""

    at_s: float
    reading: MetricsReading | None


class FaultOutcome(NamedTuple):
    """The figures of one fault, or of the calm before the first; the module's docstring defines them."""

    name: str
    detail: str
    began_s: float
    ended_s: float
    requests: int
    failed: int
    p50_s: float | None
    p99_s: float | None
    longest_s: float | None
    hit_share: float | None
    notice_s: float | None
    recover_s: float | None
    broken: tuple[str, ...]  # bounds that do not hold


def judge_calm(rows: Sequence[SentRequest], from_s: float, until_s: float, bounds: GamedayBounds) -> FaultOutcome:
    """Return the figures of the calm before the first fault, which nobody has to notice or recover from."""
    own = [one for one in rows if from_s <= end_of(one) < until_s]
    return _check(_measure(CALM, "", from_s, until_s, own), bounds)


def judge(
    played: PlayedFault, until_s: float, rows: Sequence[SentRequest], looks: Sequence[Look], calm: FaultOutcome
) -> FaultOutcome:
    """Return the figures of a fault that is judged until `until_s`; `calm` is the result of `judge_calm`."""
    own = [one for one in rows if played.began_s <= end_of(one) < until_s]
    seen = [one for one in looks if played.began_s <= one.at_s < until_s]
    before = next(
        (one.reading for one in reversed(looks) if one.at_s < played.began_s and one.reading is not None), None
    )
    notice_s = None if before is None else find_notice(played, seen, before)
    recover_s = find_recovery(played, until_s, own, seen, before, calm.p50_s)
    measured = _measure(played.fault, played.detail, played.began_s, played.ended_s, own)
    return _check(measured._replace(notice_s=notice_s, recover_s=recover_s), played.bounds)


def find_notice(played: PlayedFault, looks: Sequence[Look], before: MetricsReading) -> float | None:
    """Return how long it took until a look showed the fault. None if no look did, or no metric can show it."""
    shows = NOTICED_BY.get(played.fault)
    if shows is None:
        return None
    found = (one.at_s - played.began_s for one in looks if one.reading is not None and shows(one.reading, before))
    return next(found, None)


def find_recovery(
    played: PlayedFault,
    until_s: float,
    rows: Sequence[SentRequest],
    looks: Sequence[Look],
    before: MetricsReading | None,
    calm_p50_s: float | None,
) -> float | None:
    """Return how long after the fault's end its last sign was seen. None if there was one until the end."""
    ill = [
        one.at_s
        for one in looks
        if before is not None and (one.reading is None or not is_well(one.reading, before, played.clients))
    ]
    slow_s = None if calm_p50_s is None else calm_p50_s * SLOW_FACTOR + SLOW_S
    last_s = max([*ill, *_bad_seconds(rows, slow_s)], default=played.ended_s)
    well_later = any(one.at_s > last_s for one in looks) or before is None
    return max(0.0, last_s - played.ended_s) if well_later and last_s < until_s - 0.5 else None


def _bad_seconds(rows: Sequence[SentRequest], slow_s: float | None) -> list[float]:
    """Return when the last request ended in each second with a median wait above `slow_s`, or else the last failure
    in each second that has one.
    """
    seconds: dict[int, list[SentRequest]] = {}
    for one in rows:
        seconds.setdefault(int(end_of(one)), []).append(one)
    bad = []
    for some in seconds.values():
        failures = [end_of(one) for one in some if has_failed(one)]
        waits = [one.ttft_s for one in some if one.ttft_s is not None]
        if slow_s is not None and waits and median(waits) > slow_s:
            bad.append(max(end_of(one) for one in some))
        elif failures:
            bad.append(max(failures))
    return bad


def has_failed(one: SentRequest) -> bool:
    """Return whether the request has no complete answer, and was within the limits of its tenant."""
    return one.failure is not None and one.status != BEYOND_LIMIT


def end_of(one: SentRequest) -> float:
    """Return when the request ended, in seconds since the load began."""
    return one.sent_s + one.duration_s


def _measure(name: str, detail: str, began_s: float, ended_s: float, rows: Sequence[SentRequest]) -> FaultOutcome:
    """Return the figures that requests show; bounds are not checked yet."""
    answers = [one for one in rows if one.failure is None]
    waits = sorted(one.ttft_s for one in answers if one.ttft_s is not None)
    return FaultOutcome(
        name=name,
        detail=detail,
        began_s=began_s,
        ended_s=ended_s,
        requests=len(rows),
        failed=sum(map(has_failed, rows)),
        p50_s=quantile(waits, 0.5),
        p99_s=quantile(waits, 0.99),
        longest_s=max((max(one.ttft_s, one.pause_s or 0.0) for one in answers if one.ttft_s is not None), default=None),
        hit_share=compute_hit_share(answers),
        notice_s=None,
        recover_s=None,
        broken=(),
    )


def _check(outcome: FaultOutcome, bounds: GamedayBounds) -> FaultOutcome:
    return outcome._replace(broken=tuple(list_broken(outcome, bounds)))


def list_broken(outcome: FaultOutcome, bounds: GamedayBounds) -> list[str]:
    """Return the names of the bounds that do not hold; a figure that could not be measured breaks its bound."""
    broken = []
    for name in ("failed", "p99_s", "longest_s", "notice_s", "recover_s"):
        bound, value = getattr(bounds, name), getattr(outcome, name)
        if bound is not None and (value is None or value > bound):
            broken.append(name)
    if bounds.hit_share is not None and (outcome.hit_share is None or outcome.hit_share < bounds.hit_share):
        broken.append("hit_share")
    return broken
