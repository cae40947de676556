"""Compares a router with ours under one load: paired by seed, with an interval from resampling the pairs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from statistics import median
from typing import NamedTuple

import numpy as np

from tests.headtohead.match import Match

RESAMPLES, LEVEL, SEED = 10_000, 0.95, 1
MIN_PAIRS = 4  # with fewer, no interval


class Ratio(NamedTuple):
    """The geometric mean of a figure of theirs over ours, by seed, and its 95 % interval; None: too few seeds."""

    mean: float
    interval: tuple[float, float] | None

    @property
    def is_equal(self) -> bool | None:
        """Return whether the difference is within the noise; None if that is not known."""
        return None if self.interval is None else self.interval[0] <= 1.0 <= self.interval[1]


def compare(theirs: Sequence[float], ours: Sequence[float]) -> Ratio | None:
    """Return how `theirs` relate to `ours`, both in the same order of seeds; None without pairs."""
    logs = np.array([log(their / our) for their, our in zip(theirs, ours, strict=True) if their > 0 and our > 0])
    if not len(logs):
        return None
    interval = None
    if len(logs) >= MIN_PAIRS:
        picks = np.random.default_rng(SEED).integers(0, len(logs), (RESAMPLES, len(logs)))
        low, high = np.quantile(logs[picks].mean(axis=1), ((1 - LEVEL) / 2, (1 + LEVEL) / 2))
        interval = exp(low), exp(high)
    return Ratio(exp(logs.mean()), interval)


def by_router(matches: Iterable[Match], load: str) -> Mapping[str, Mapping[int, Match]]:
    """Return the played matches of a load, by router and seed."""
    found: dict[str, dict[int, Match]] = {}
    for match in matches:
        if match.load == load and match.figures is not None:
            found.setdefault(match.router, {})[match.seed] = match
    return found


def median_figure(matches: Mapping[int, Match], figure: str) -> float | None:
    """Return the median of a figure over the seeds; None if no match has it."""
    values = [value for match in matches.values() if (value := getattr(match.figures, figure, None)) is not None]
    return median(values) if values else None


def compare_figure(theirs: Mapping[int, Match], ours: Mapping[int, Match], figure: str) -> Ratio | None:
    """Return how a figure of two routers relates, over the seeds that both have played."""
    values = [
        (getattr(theirs[seed].figures, figure), getattr(ours[seed].figures, figure))
        for seed in sorted(theirs)
        if seed in ours
    ]
    pairs = [(their, our) for their, our in values if their is not None and our is not None]
    return compare([their for their, _ in pairs], [our for _, our in pairs])
