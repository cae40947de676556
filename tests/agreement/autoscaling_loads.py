"""Loads that rise and fall: agents by a day's curve, and requests with shared prompts in bursts.

Pure: the same seed gives the same load.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import cos, pi

from router.lab.rng import Rng
from router.lab.workloads.arrivals import RatePhase, vary_rate
from router.lab.workloads.distributions import draw_gap_s, draw_uniform
from router.lab.workloads.model import Workload
from router.lab.workloads.presets import CODEX, TOOLS


def diurnal(lasts_s: float, most_per_s: float, seed: int) -> Workload:
    """Sessions of `codex` that begin at a rate between `most_per_s` and a fifth of it, least at both ends."""

    def share(at_s: float) -> float:
        return 0.6 - 0.4 * cos(2 * pi * at_s / lasts_s)

    starts_s = draw_starts(lasts_s, most_per_s, share, Rng(seed ^ 0xDA7))
    sessions = replace(CODEX, sessions=len(starts_s)).workload(seed).sessions
    begun = (session._replace(start_s=at_s) for session, at_s in zip(sessions, starts_s, strict=True))
    return Workload("diurnal", seed, tuple(begun))


def draw_starts(lasts_s: float, most_per_s: float, share: Callable[[float], float], rng: Rng) -> list[float]:
    """Return the times of a Poisson process with the rate `share(time)` of `most_per_s`, by thinning (Lewis 1979)."""
    starts_s, at_s = [], draw_gap_s(rng, most_per_s)
    while at_s < lasts_s:
        if draw_uniform(rng) < share(at_s):
            starts_s.append(at_s)
        at_s += draw_gap_s(rng, most_per_s)
    return starts_s


def bursts(lasts_s: float, mean_per_s: float, phase_s: float, seed: int) -> Workload:
    """Requests of `tools` at a third of the mean rate for `phase_s`, then at five times that, in turn."""
    steady = replace(TOOLS, requests=round(lasts_s * mean_per_s), per_s=mean_per_s).workload(seed)
    return vary_rate(steady, (RatePhase(phase_s, 1 / 3), RatePhase(phase_s, 5 / 3)))
