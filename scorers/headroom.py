"""Headroom between predicted latencies and their objectives, for `slo_headroom` (which describes the formula).

This module is separate from the plug-in because it is compiled and plug-ins are not (setup.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import fsum
from typing import NamedTuple

from scorers.contract import Row
from scorers.polled import fill_missing
from scorers.row_loops import least_and_most
from scorers.streams import decode_ms

SAME_MS = 1e-9  # latencies that differ by less count as equal: the difference is rounding


class PredictedLatency(NamedTuple):
    """The predicted TTFT or TPOT at each row."""

    ms: list[float]
    objective_ms: float  # 0: no objective
    weight: float


def headroom_costs(latencies: list[PredictedLatency], prefer_least: bool) -> list[float]:
    """Return each row's cost. Rows that meet all objectives cost less than 0.5, ranked by the headroom they leave;
    the others cost more, ranked by how far they miss the objectives.
    """
    meets = _meets(latencies)
    near = [i for i, met in enumerate(meets) if met]
    far = [i for i, met in enumerate(meets) if not met]
    costs = [0.0] * len(meets)
    if near:
        for place, blend in enumerate(_blend([_select(latency, near) for latency in latencies])):
            costs[near[place]] = 0.4 * (1 - blend if prefer_least else blend)
    if far:
        for place, blend in enumerate(_blend([_excess(_select(latency, far)) for latency in latencies])):
            costs[far[place]] = 0.6 + 0.4 * blend
    return costs


def steps_ms(rows: Sequence[Row], whole: int) -> list[float] | None:
    """Return milliseconds per token at each row with this request in its batch. None if no row has a decode
    curve.
    """
    steps: list[float | None] = []
    is_known = False
    for row in rows:
        decode, load = row.speed.decode, row.load
        if decode is None:
            steps.append(None)
        else:
            steps.append(decode_ms(decode, load.requests + 1, load.context_tokens + whole))
            is_known = True
    return fill_missing(steps) if is_known else None


def _meets(latencies: Sequence[PredictedLatency]) -> list[bool]:
    """Return which rows meet all objectives; no row does if there is no objective."""
    if not any(latency.objective_ms for latency in latencies):
        return [False] * len(latencies[0].ms)
    meets = [True] * len(latencies[0].ms)
    for ms, objective_ms, _ in latencies:
        for i, value in enumerate(ms):
            if value > objective_ms:
                meets[i] = False
    return meets


def _select(latency: PredictedLatency, rows: Sequence[int]) -> PredictedLatency:
    ms = latency.ms
    return PredictedLatency([ms[i] for i in rows], latency.objective_ms, latency.weight)


def _excess(latency: PredictedLatency) -> PredictedLatency:
    ms, objective_ms, weight = latency
    return PredictedLatency([max(0.0, value - objective_ms) for value in ms], objective_ms, weight)


def _blend(latencies: Sequence[PredictedLatency]) -> list[float]:
    """Return each row's blend of the latencies that differ between rows, from 0 (the least of all of them) to 1."""
    varying: list[tuple[PredictedLatency, float, float]] = []
    for latency in latencies:
        least, most = least_and_most(latency.ms)
        if most - least > SAME_MS:
            varying.append((latency, least, most))
    weights = fsum([latency.weight for latency, _, _ in varying])
    blended = [0.0] * len(latencies[0].ms)
    for latency, least, most in varying:
        scale = (latency.weight / weights if weights else 1.0) / (most - least)  # a lone one gets all weight
        for i, value in enumerate(latency.ms):
            blended[i] += scale * (value - least)
    return [min(1.0, value) for value in blended]
