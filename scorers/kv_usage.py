"""Share of a target's KV memory that live requests use: where it runs full, the engine preempts and recomputes.

    cost = share of KV blocks in use

llm-d's kv-cache-utilisation score inverted (`1 - usage`). Cached but idle blocks do not count, since they can be
evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_above_0
from scorers.polled import read_gauge

USAGE = attrgetter("kv_usage")


@dataclass(frozen=True)
class KvUsage(Scorer):
    """The share of KV blocks that live requests use, as the engine last reported.

    Missing: a row whose engine has not reported it, or not within `stale_s`, gets the mean of the others; if none has,
    all cost 0.
    """

    needs = Needs.LOAD
    unit = Unit.POINTS

    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_above_0(stale_s=self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        costs = read_gauge([row.load for row in view.rows], USAGE, self.stale_s)
        if min(costs) < 0 or max(costs) > 1:  # no engine should report this, but the number is not ours
            return [min(1.0, max(0.0, cost)) for cost in costs]
        return costs
