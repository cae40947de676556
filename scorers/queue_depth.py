"""Number of requests at a target, relative to the least and the most loaded candidate.

    cost = (x - min) / (max - min)        all equal: 0

This is llm-d's queue scorer inverted (`(max - x) / (max - min)`), on a count of our own: polled gauges alone send
every request between two polls to the same "idle" engine, and own bookings alone do not include other clients. So x
is our bookings in flight, always up to date, plus the requests of others that the last poll found at the target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_above_0
from scorers.row_loops import relative_requests


@dataclass(frozen=True)
class QueueDepth(Scorer):
    """Requests at a target, ours and others', between the fewest (0) and the most (1) of all candidates.

    Missing: where an engine has not reported how many requests of others it has, or longer than `stale_s` ago, the
    mean of what the other candidates reported is assumed, so that silence does not look idle. If none reported any,
    our own bookings alone are compared.
    """

    needs = Needs.LOAD
    unit = Unit.POINTS

    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_above_0(stale_s=self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        return relative_requests(view.rows, self.stale_s)
