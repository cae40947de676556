"""Share of a target's KV memory that live requests use: where it runs full, the engine preempts and recomputes.

    cost = share of KV blocks in use

This is llm-d's kv-cache-utilisation score inverted (`1 - usage`). Cached but idle blocks do not count, since they
can be evicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_above_0
from scorers.row_loops import kv_usages


@dataclass(frozen=True)
class KvUsage(Scorer):
    """The share of KV blocks that live requests use, as the engine last reported.

    Missing: a row whose engine has not reported it, or not within `stale_s`, gets the mean of the others; if none
    has, all cost 0.
    """

    needs = Needs.LOAD
    unit = Unit.POINTS

    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_above_0(stale_s=self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        return kv_usages(view.rows, self.stale_s)
