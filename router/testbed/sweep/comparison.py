"""Cells side by side: policies are compared where everything else is alike, over all seeds.

comparison = situations (fleet, pool, load), each with a row per policy, each with its figures per seed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from router.testbed.simulator.outcome import SimulationFigures
from router.testbed.sweep.capacity import CapacityResult
from router.testbed.sweep.cells import CellResult, LoadLevel
from router.testbed.sweep.columns import FigureValue, average_over_seeds
from router.testbed.sweep.fleets import FleetOption


class Situation(NamedTuple):
    fleet: FleetOption
    load: LoadLevel
    requests_per_s: float | None  # that come, in the mean over seeds; None: a closed loop

    def __str__(self) -> str:
        rate = "" if self.requests_per_s is None else f" ({self.requests_per_s:,.4g} requests/s)"
        coming = str(self.load) if self.load.kind == "rate" else f"{self.load}{rate}"
        return f"{self.fleet}, {coming}"


class ComparisonRow(NamedTuple):
    policy: str
    seeds: tuple[SimulationFigures, ...]


class ComparisonTable(NamedTuple):
    situation: Situation
    rows: tuple[ComparisonRow, ...]


class CapacityTable(NamedTuple):
    """One policy on one fleet. `load`: requests per second or sessions per instance; None: of some seed not found."""

    policy: str
    fleet: FleetOption
    kind: str
    load: FigureValue | None
    requests_per_s: FigureValue | None  # that ended well at that load
    share: FigureValue | None  # that met the limits
    bounded: bool  # False: more was not tried, it may do better


def compare(cells: Iterable[CellResult]) -> list[ComparisonTable]:
    """Situations, and policies in each, in the order in which they first occur."""
    found: dict[tuple[FleetOption, LoadLevel], dict[str, list[CellResult]]] = {}
    for one in cells:
        cell = one.cell
        situation = found.setdefault((cell.fleet, cell.load), {})
        situation.setdefault(cell.policy, []).append(one)
    return [
        ComparisonTable(
            Situation(fleet, load, _rate([one for own in policies.values() for one in own])),
            tuple(ComparisonRow(policy, tuple(one.figures for one in own)) for policy, own in policies.items()),
        )
        for (fleet, load), policies in found.items()
    ]


def summarize_capacities(searches: Iterable[CapacityResult]) -> list[CapacityTable]:
    found: dict[tuple[FleetOption, str], list[CapacityResult]] = {}
    for one in searches:
        cell = one.search.cell
        found.setdefault((cell.fleet, cell.policy), []).append(one)
    return [_capacity(*key, seeds) for key, seeds in found.items()]


def _capacity(fleet: FleetOption, policy: str, seeds: Sequence[CapacityResult]) -> CapacityTable:
    bests = [one.best for one in seeds]
    return CapacityTable(
        policy,
        fleet,
        seeds[0].search.cell.load.kind,
        average_over_seeds([None if best is None else best.load for best in bests]),
        average_over_seeds([None if best is None else best.requests_per_s for best in bests]),
        average_over_seeds([None if best is None else best.share for best in bests]),
        all(one.bounded for one in seeds),
    )


def _rate(cells: Sequence[CellResult]) -> float | None:
    mean = average_over_seeds([one.requests_per_s for one in cells])
    return None if mean is None else mean.mean
