"""Targets that would meet the request's latency objectives first, ranked by what they leave of them.

    n(x)     x between the least (0) and the most (1) of its group
    blend    ttft_weight * n(TTFT) + tpot_weight * n(TPOT)
    meets    0.4 * (1 - blend)    the least headroom first; with `prefer: most` 0.4 * blend
    misses   0.6 + 0.4 * blend    of what is over the objectives: the nearest miss first

llm-d's `latency-scorer` (weights 0.8 and 0.2, "least": requests are packed onto targets that just meet them, so that
others stay free for requests with less time). What all of a group share says nothing: its weight goes to the other.
There sidecars predict both latencies by XGBoost; here TTFT is the learned curve with the cheapest way to fetch
(ttft.py), and TPOT one decode step of the target's batch with this request in it. Left out: the affinity gates (the
filter `affinity_gate` is one), idle targets first among those that miss, a per cent of requests sent to those that
miss, and the fall-back to queue, memory and cache without a prediction: there always is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum
from typing import Literal, NamedTuple

from scorers.bounds import check_not_negative
from scorers.contract import Needs, Row, Scorer, Unit, View
from scorers.polled import check_stale_s, fill_missing
from scorers.ttft import prompt_of, ttfts_ms

SAME_MS = 1e-9  # latencies that differ by less are equal: their range is rounding


class PredictedLatency(NamedTuple):
    """One of the two, as predicted at each row."""

    ms: Sequence[float]
    objective_ms: float  # 0: none
    weight: float


@dataclass(frozen=True)
class SloHeadroom(Scorer):
    """Below 0.5 targets that would meet the objectives for TTFT and TPOT, above it those that would not.

    Objectives are the request's own, or else `ttft_ms` and `tpot_ms`; 0 is none. One without an objective does not
    count while the other has one. If neither has, all miss and the lowest blend of both latencies wins, as in llm-d.

    TPOT counts our own requests at the target; those of others are not in it.
    Missing: a row without a decode curve gets the mean TPOT of the others; if none has one, only TTFT counts. The rest
    as in `expected_ttft`.
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
        check_not_negative(ttft_ms=self.ttft_ms, tpot_ms=self.tpot_ms)
        check_not_negative(ttft_weight=self.ttft_weight, tpot_weight=self.tpot_weight)
        if self.ttft_weight + self.tpot_weight == 0:
            raise ValueError("ttft_weight, tpot_weight: one must be above 0")
        check_stale_s(self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        latencies = self._latencies(view)
        meets = _meets(latencies)
        near = [i for i, met in enumerate(meets) if met]
        far = [i for i, met in enumerate(meets) if not met]
        costs = [0.0] * len(meets)
        for i, blend in zip(near, _blend([_only(latency, near) for latency in latencies]), strict=True):
            costs[i] = 0.4 * (1 - blend if self.prefer == "least" else blend)
        for i, blend in zip(far, _blend([_over(_only(latency, far)) for latency in latencies]), strict=True):
            costs[i] = 0.6 + 0.4 * blend
        return costs

    def _latencies(self, view: View) -> list[PredictedLatency]:
        """Those that count: with an objective, or all if none has one."""
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
    """Milliseconds per token at each row with this request in its batch. None: no row has a curve."""
    steps = [_step_ms(row, whole) for row in rows]
    return None if all(step is None for step in steps) else fill_missing(steps)


def _step_ms(row: Row, whole: int) -> float | None:
    decode, load = row.speed.decode, row.load
    return None if decode is None else decode.step_ms(load.requests + 1, load.context_tokens + whole)


def _meets(latencies: Sequence[PredictedLatency]) -> list[bool]:
    """Which rows meet all objectives. Where there is none, none does."""
    if not any(latency.objective_ms for latency in latencies):
        return [False] * len(latencies[0].ms)
    within = [[ms <= latency.objective_ms for ms in latency.ms] for latency in latencies]
    return [all(row) for row in zip(*within, strict=True)]


def _only(latency: PredictedLatency, rows: Sequence[int]) -> PredictedLatency:
    return latency._replace(ms=[latency.ms[i] for i in rows])


def _over(latency: PredictedLatency) -> PredictedLatency:
    return latency._replace(ms=[max(0.0, ms - latency.objective_ms) for ms in latency.ms])


def _blend(latencies: Sequence[PredictedLatency]) -> list[float]:
    """Each row between 0, the least of everything, and 1. What is equal for all rows has no say."""
    telling = [latency for latency in latencies if latency.ms and max(latency.ms) - min(latency.ms) > SAME_MS]
    weights = fsum([latency.weight for latency in telling])
    blended = [0.0] * len(latencies[0].ms)
    for ms, _, weight in telling if weights else ():
        least = min(ms)
        scale = weight / weights / (max(ms) - least)
        blended = [so_far + scale * (value - least) for so_far, value in zip(blended, ms, strict=True)]
    return [min(1.0, value) for value in blended]
