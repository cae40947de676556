"""Latency objectives: targets that would meet the request's first, ranked by the headroom they leave.

    n(x)     x between the least (0) and the most (1) of its group
    blend    ttft_weight * n(TTFT) + tpot_weight * n(TPOT)
    meets    0.4 * (1 - blend)    the least headroom first; with `prefer: most` 0.4 * blend
    misses   0.6 + 0.4 * blend    of what is over the objectives: the nearest miss first

llm-d's `latency-scorer` (weights 0.8 and 0.2, "least": requests are packed onto targets that just meet them, so that
others stay free for requests with less time). A latency that is equal for all of a group is ignored: its weight goes to
the other. In llm-d sidecars predict both latencies by XGBoost; here TTFT is the learned curve with the cheapest way to
fetch (ttft.py), and TPOT one decode step of the target's batch with this request in it. Left out: the affinity gates
(the filter `affinity_gate` is one), idle targets first among those that miss, a per cent of requests sent to those that
miss, and the fall-back to queue, memory and cache without a prediction: there always is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Literal, NamedTuple

from scorers.contract import Needs, Row, Scorer, Unit, View
from scorers.parameters import check_above_0, check_at_least
from scorers.polled import fill_missing
from scorers.ttft import prompt_of, ttfts_ms

SAME_MS = 1e-9  # latencies that differ by less are equal: their range is rounding


class PredictedLatency(NamedTuple):
    """TTFT or TPOT as predicted at each row."""

    ms: Sequence[float]
    objective_ms: float  # 0 for none
    weight: float


@dataclass(frozen=True)
class SloHeadroom(Scorer):
    """Below 0.5 targets that would meet the objectives for TTFT and TPOT, above it those that would not.

    Objectives are the request's own, or else `ttft_ms` and `tpot_ms`; 0 is none. A latency without an objective does
    not count while the other has one. If neither has, all miss and the lowest blend of both latencies wins, as in
    llm-d.

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
        latencies = self._latencies(view)
        meets = _meets(latencies)
        near = [i for i, met in enumerate(meets) if met]
        far = [i for i, met in enumerate(meets) if not met]
        costs = [0.0] * len(meets)
        for i, blend in zip(near, _blend([_select(latency, near) for latency in latencies]), strict=True):
            costs[i] = 0.4 * (1 - blend if self.prefer == "least" else blend)
        for i, blend in zip(far, _blend([_excess(_select(latency, far)) for latency in latencies]), strict=True):
            costs[i] = 0.6 + 0.4 * blend
        return costs

    def _latencies(self, view: View) -> list[PredictedLatency]:
        """Return the latencies with an objective, or all if none has one."""
        ttft_ms = self.ttft_ms if view.ask.ttft_ms is None else view.ask.ttft_ms
        tpot_ms = self.tpot_ms if view.ask.tpot_ms is None else view.ask.tpot_ms
        prompt = prompt_of(view)
        latencies = []
        steps = _steps_ms(view.rows, prompt.whole) if tpot_ms or not ttft_ms else None
        if steps is not None:
            latencies.append(PredictedLatency(steps, tpot_ms, self.tpot_weight))
        if ttft_ms or steps is None or not tpot_ms:
            latencies.append(PredictedLatency(ttfts_ms(view.rows, prompt, self.stale_s), ttft_ms, self.ttft_weight))
        return latencies


def _steps_ms(rows: Sequence[Row], whole: int) -> list[float] | None:
    """Return milliseconds per token at each row with this request in its batch; None if no row has a curve."""
    steps = [_step_ms(row, whole) for row in rows]
    return None if all(step is None for step in steps) else fill_missing(steps)


def _step_ms(row: Row, whole: int) -> float | None:
    decode, load = row.speed.decode, row.load
    return None if decode is None else decode.step_ms(load.requests + 1, load.context_tokens + whole)


def _meets(latencies: Sequence[PredictedLatency]) -> list[bool]:
    """Return which rows meet all objectives; none does if there is no objective."""
    if not any(latency.objective_ms for latency in latencies):
        return [False] * len(latencies[0].ms)
    within = [[ms <= latency.objective_ms for ms in latency.ms] for latency in latencies]
    return [all(row) for row in zip(*within, strict=True)]


def _select(latency: PredictedLatency, rows: Sequence[int]) -> PredictedLatency:
    return latency._replace(ms=[latency.ms[i] for i in rows])


def _excess(latency: PredictedLatency) -> PredictedLatency:
    return latency._replace(ms=[max(0.0, ms - latency.objective_ms) for ms in latency.ms])


def _blend(latencies: Sequence[PredictedLatency]) -> list[float]:
    """Return each row's blend, from 0 (the least of everything) to 1, of the latencies that differ between rows."""
    varying = [latency for latency in latencies if latency.ms and max(latency.ms) - min(latency.ms) > SAME_MS]
    weights = fsum([latency.weight for latency in varying])
    blended = [0.0] * len(latencies[0].ms)
    for ms, _, weight in varying:
        least = min(ms)
        scale = (weight / weights if weights else 1.0) / (max(ms) - least)  # alone, it takes over the other's weight
        blended = [so_far + scale * (value - least) for so_far, value in zip(blended, ms, strict=True)]
    return [min(1.0, value) for value in blended]
