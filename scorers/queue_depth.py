"""How many requests a target has, against the least and most loaded candidate.

    cost = (x - min) / (max - min)        all equal: 0

llm-d's queue scorer turned round (`(max - x) / (max - min)`), on a count of our own: polled gauges alone send every
request between two polls to the same "idle" engine, own books alone do not see other clients. So x is our bookings in
flight, known to the instant, plus the requests of others that the last poll found there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from scorers.contract import Needs, Scorer, Unit, View
from scorers.polled import check_stale_s, read_gauge

ELSEWHERE = attrgetter("elsewhere")


@dataclass(frozen=True)
class QueueDepth(Scorer):
    """Requests at a target, ours and others', between the fewest (0) and the most (1) of all candidates.

    Missing: where an engine has not told how many requests of others it has, or told it more than `stale_s` ago, the
    mean of what the other candidates told is assumed, so that silence does not look idle. If none told, our own
    books alone are compared.
    """

    needs = Needs.LOAD
    unit = Unit.POINTS

    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_stale_s(self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        loads = [row.load for row in view.rows]
        others = read_gauge(loads, ELSEWHERE, self.stale_s)
        counts = [load.requests + count for load, count in zip(loads, others, strict=True)]
        least = min(counts)
        spread = max(counts) - least
        return [(count - least) / spread for count in counts] if spread > 0 else [0.0] * len(counts)
