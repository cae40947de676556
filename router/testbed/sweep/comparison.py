"""Cells side by side: policies are compared where everything else is alike, over all seeds.

comparison = situations (fleet, pool, load), each with a row per policy, each with its figures per seed
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from router.testbed.simulator.outcome import Figures
from router.testbed.sweep.capacity import Found
from router.testbed.sweep.cells import Load, Measured
from router.testbed.sweep.columns import Value, over_seeds
from router.testbed.sweep.fleets import Fleet


class Situation(NamedTuple):
    fleet: Fleet
    load: Load
    requests_per_s: float | None  # that come, in the mean over seeds; None: a closed loop

    def __str__(self) -> str:
        rate = "" if self.requests_per_s is None else f" ({self.requests_per_s:,.4g} requests/s)"
        coming = str(self.load) if self.load.kind == "rate" else f"{self.load}{rate}"
        return f"{self.fleet}, {coming}"


class Row(NamedTuple):
    policy: str
    seeds: tuple[Figures, ...]


class Table(NamedTuple):
    situation: Situation
    rows: tuple[Row, ...]


class Capacity(NamedTuple):
    """One policy on one fleet. `load`: requests per second or sessions per instance; None: of some seed not found."""

    policy: str
    fleet: Fleet
    kind: str
    load: Value | None
    requests_per_s: Value | None  # that ended well at that load
    share: Value | None  # that met the limits
    bounded: bool  # False: more was not tried, it may do better


def compared(cells: Iterable[Measured]) -> list[Table]:
    """Situations, and policies in each, in the order in which they first occur."""
    found: dict[tuple[Fleet, Load], dict[str, list[Measured]]] = {}
    for one in cells:
        cell = one.cell
        situation = found.setdefault((cell.fleet, cell.load), {})
        situation.setdefault(cell.policy, []).append(one)
    return [
        Table(
            Situation(fleet, load, _rate([one for own in policies.values() for one in own])),
            tuple(Row(policy, tuple(one.figures for one in own)) for policy, own in policies.items()),
        )
        for (fleet, load), policies in found.items()
    ]


def capacities(searches: Iterable[Found]) -> list[Capacity]:
    found: dict[tuple[Fleet, str], list[Found]] = {}
    for one in searches:
        cell = one.search.cell
        found.setdefault((cell.fleet, cell.policy), []).append(one)
    return [_capacity(*key, seeds) for key, seeds in found.items()]


def _capacity(fleet: Fleet, policy: str, seeds: Sequence[Found]) -> Capacity:
    bests = [one.best for one in seeds]
    return Capacity(
        policy,
        fleet,
        seeds[0].search.cell.load.kind,
        over_seeds([None if best is None else best.load for best in bests]),
        over_seeds([None if best is None else best.requests_per_s for best in bests]),
        over_seeds([None if best is None else best.share for best in bests]),
        all(one.bounded for one in seeds),
    )


def _rate(cells: Sequence[Measured]) -> float | None:
    mean = over_seeds([one.requests_per_s for one in cells])
    return None if mean is None else mean.mean
