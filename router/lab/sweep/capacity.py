"""`--find-capacity`: the highest load at which a policy still serves well, found by doubling, then by bisection.

A load is served well when a given share of all requests meets both limits; shed and failed requests meet neither.
The search assumes that more load is never easier to serve. The assumption holds for fleets, but only nearly for a
single seed, so the answer is no more accurate than the stated step.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

from router.lab.simulator.outcome import RequestEnd, ServiceLimits, SimulationOutcome, is_served_well
from router.lab.sweep.cells import LoadLevel, SweepCell

STEP = 1.05  # the lowest load found to fail is at most this factor above the answer
DOUBLINGS = 8  # from the first load, up or down


@dataclass(frozen=True, slots=True)
class CapacitySearch:
    """A capacity search that begins at the cell's own load."""

    cell: SweepCell
    share: float = 0.9  # of all requests that must meet both limits

    @property
    def name(self) -> str:
        return f"capacity of {self.cell.name}"


class TriedLoad(NamedTuple):
    load: float
    share: float  # of requests that met both limits
    requests_per_s: float  # that ended well, over the whole run


class CapacityResult(NamedTuple):
    """Result of a search. `best` None: no tried load was served well; `bounded`: a higher load was not."""

    search: CapacitySearch
    best: TriedLoad | None
    bounded: bool
    tried: tuple[TriedLoad, ...]  # in the order of loads


def share_served_well(outcome: SimulationOutcome, limits: ServiceLimits) -> float:
    """Return the share of all requests that met both limits. Raises ValueError when there are no requests."""
    if not len(outcome):
        raise ValueError("no request was sent: the workload is empty, or it begins after the end of the simulation")
    return sum(is_served_well(outcome, row, limits) for row in range(len(outcome))) / len(outcome)


def search_capacity(search: CapacitySearch, play: Callable[[SweepCell], SimulationOutcome]) -> CapacityResult:
    """Run the search; `play` simulates a cell."""
    tried: dict[float, TriedLoad] = {}

    def well(load: float) -> bool:
        cell = replace(search.cell, load=LoadLevel(search.cell.load.kind, load))
        outcome = play(cell)
        ended = outcome.end.count(RequestEnd.OK) / max(outcome.took_s, 1e-9)
        tried[load] = TriedLoad(load, share_served_well(outcome, cell.limits), ended)
        return tried[load].share >= search.share

    low, high = _bracket(search.cell.load.value, well)
    while low is not None and high is not None and high > low * STEP:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if well(middle) else (low, middle)
    best = None if low is None else tried[low]
    return CapacityResult(search, best, high is not None, tuple(tried[load] for load in sorted(tried)))


def _bracket(first: float, well: Callable[[float], bool]) -> tuple[float | None, float | None]:
    """Return the highest load found to be served well and the lowest found not to be; each None if not found."""
    good = bad = None
    load = first
    for _ in range(DOUBLINGS + 1):
        if well(load):
            good = load
            if bad is not None:
                break
            load *= 2
        else:
            bad = load
            if good is not None:
                break
            load /= 2
    return good, bad
