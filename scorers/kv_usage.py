"""How full a target's KV memory is with live requests: where it runs full, the engine preempts and recomputes.

    cost = share of KV blocks in use

llm-d's kv-cache-utilisation score turned round (`1 - usage`). Cached but idle blocks do not count: they make way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from scorers.contract import Needs, Scorer, Unit, View


@dataclass(frozen=True)
class KvUsage(Scorer):
    """The share of KV blocks that live requests use, as the engine last said.

    Missing: a row whose engine has not told, or not within `stale_s`, gets the mean of the others; if none told, all
    cost 0.
    """

    needs = Needs.LOAD
    unit = Unit.POINTS

    stale_s: float = 15.0

    def __post_init__(self) -> None:
        if self.stale_s <= 0:
            raise ValueError(f"stale_s: an age above 0 s, not {self.stale_s}")

    def score(self, view: View) -> Sequence[float]:
        stale_s = self.stale_s
        loads = [row.load for row in view.rows]
        usages = [
            load.kv_usage if (age_s := load.metrics_age_s) is not None and age_s <= stale_s else None for load in loads
        ]
        told = [usage for usage in usages if usage is not None]
        typical = fsum(told) / len(told) if told else 0.0
        costs = [typical if usage is None else usage for usage in usages]
        if min(costs) < 0 or max(costs) > 1:  # no engine should, but it is the engine's number
            return [min(1.0, max(0.0, cost)) for cost in costs]
        return costs
