"""Latency objectives: targets that would meet the request's objectives come first, ranked by the headroom they
leave.

    n(x)     x between the least (0) and the most (1) of its group
    blend    ttft_weight * n(TTFT) + tpot_weight * n(TPOT)
    meets    0.4 * (1 - blend)    the least headroom first; with `prefer: most` 0.4 * blend
    misses   0.6 + 0.4 * blend    of what is over the objectives: the nearest miss first

This is llm-d's `latency-scorer` (weights 0.8 and 0.2, "least": requests are packed onto targets that just meet the
objectives, so that others stay free for requests with less time). A latency that is equal for all rows of a group
is ignored: its weight goes to the other. In llm-d sidecars predict both latencies by XGBoost; here TTFT is the
learned curve with the cheapest way to fetch (ttft.py), and TPOT is one decode step of the target's batch with this
request in it. Left out are the affinity gates (the filter `affinity_gate` is one), the preference for idle targets
among those that miss, a per cent of requests sent to targets that miss, and the fall-back to queue, memory and
cache without a prediction: a prediction always exists here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scorers.contract import Needs, Scorer, Unit, View
from scorers.headroom import PredictedLatency, headroom_costs, steps_ms
from scorers.parameters import check_above_0, check_at_least
from scorers.ttft import prompt_of, ttfts_ms


@dataclass(frozen=True)
class SloHeadroom(Scorer):
    """Below 0.5 targets that would meet the objectives for TTFT and TPOT, above it those that would not.

    Objectives are the request's own, or else `ttft_ms` and `tpot_ms`; 0 is none. A latency without an objective
    does not count while the other has one. If neither has, all miss and the lowest blend of both latencies wins, as
    in llm-d.

    TPOT counts our own requests at the target; those of others are not in it. Missing: a row without a decode curve
    gets the mean TPOT of the others; if none has one, only TTFT counts. The rest as in `expected_ttft`.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.POINTS

    ttft_ms: float = 0.0
    tpot_ms: float = 0.0
    ttft_weight: float = 0.8
    tpot_weight: float = 0.2
    prefer: Literal["least", "most"] = "least"
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        """Raise ValueError if a parameter is out of bounds or both weights are 0."""
        check_at_least(0, ttft_ms=self.ttft_ms, tpot_ms=self.tpot_ms)
        check_at_least(0, ttft_weight=self.ttft_weight, tpot_weight=self.tpot_weight)
        if self.ttft_weight + self.tpot_weight == 0:
            raise ValueError("ttft_weight, tpot_weight: one must be above 0")
        check_above_0(stale_s=self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        return headroom_costs(self._latencies(view), self.prefer == "least")

    def _latencies(self, view: View) -> list[PredictedLatency]:
        """Return the latencies with an objective, or all if none has one."""
        ttft_ms = self.ttft_ms if view.ask.ttft_ms is None else view.ask.ttft_ms
        tpot_ms = self.tpot_ms if view.ask.tpot_ms is None else view.ask.tpot_ms
        prompt = prompt_of(view)
        latencies = []
        steps = steps_ms(view.rows, prompt.whole) if tpot_ms or not ttft_ms else None
        if steps is not None:
            latencies.append(PredictedLatency(steps, tpot_ms, self.tpot_weight))
        if ttft_ms or steps is None or not tpot_ms:
            latencies.append(PredictedLatency(ttfts_ms(view.rows, prompt, self.stale_s), ttft_ms, self.ttft_weight))
        return latencies
