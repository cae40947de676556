"""Results of a sweep: policies compared where everything else is equal, over all seeds; and all of it as JSON.

    comparison = situations (fleet, pool, load), each with a row per policy, which holds its figures per seed

The terminal, the HTML page and the charts take columns, units and "which end is better" from this module, so they
agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from typing import Any, Literal, NamedTuple

import msgspec

from router.lab.simulator.outcome import SimulationFigures
from router.lab.sweep.capacity import CapacityResult
from router.lab.sweep.cells import CellFailure, CellResult, FleetOption, LoadLevel, SweepCell
from router.lab.sweep.options import OFF
from router.lab.sweep.spec import SweepSpec
from router.scheduling.policy.policy import compute_digest


class FigureColumn(NamedTuple):
    key: str
    head: str  # with the unit
    of: Callable[[SimulationFigures], float | None]
    digits: int
    better: Literal["less", "more"] | None = None
    always: bool = True  # False: only where some policy has a value other than 0
    spread: bool = False  # print the spread over seeds beside the mean


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e3


def percent(share: float | None) -> float | None:
    """Return `share` in percent; None stays None."""
    return None if share is None else share * 100


COLUMNS: tuple[FigureColumn, ...] = (
    FigureColumn("ttft_mean", "TTFT s mean", lambda own: own.ttft_mean_s, 2, "less", spread=True),
    FigureColumn("ttft_p50", "p50", lambda own: own.ttft_p50_s, 2, "less"),
    FigureColumn("ttft_p90", "p90", lambda own: own.ttft_p90_s, 2, "less", spread=True),
    FigureColumn("ttft_p99", "p99", lambda own: own.ttft_p99_s, 2, "less"),
    FigureColumn("tpot", "TPOT ms", lambda own: _ms(own.tpot_mean_s), 1, "less"),
    FigureColumn("requests_per_s", "req/s", lambda own: own.requests_per_s, 2, "more", spread=True),
    FigureColumn("good_per_s", "good/s", lambda own: own.good_per_s, 2, "more", spread=True),
    FigureColumn("output", "out tok/s", lambda own: own.output_tokens_per_s, 0, "more"),
    FigureColumn("hit", "hit %", lambda own: percent(own.hit_share), 1, "more", spread=True),
    FigureColumn("local", "local", lambda own: percent(own.local_share), 1),
    FigureColumn("host", "host", lambda own: percent(own.host_share), 1, always=False),
    FigureColumn("pool", "pool", lambda own: percent(own.pool_share), 1, always=False),
    FigureColumn("imbalance", "imbal.", lambda own: own.imbalance, 2, "less"),
    FigureColumn("shed", "shed", lambda own: own.shed, 0, "less", always=False),
    FigureColumn("failed", "failed", lambda own: own.failed, 0, "less", always=False),
    FigureColumn("waited_p50", "wait s p50", lambda own: own.waited_p50_s, 1, always=False),
    FigureColumn("waited_p90", "wait s p90", lambda own: own.waited_p90_s, 1, always=False),
)


class FigureValue(NamedTuple):
    """A figure over seeds. `spread`: half the distance between lowest and highest value; None with one seed."""

    mean: float
    spread: float | None

    def format(self, digits: int, spread: bool = True) -> str:
        """Return the mean as text, with "±spread" if wanted and known."""
        middle = f"{self.mean:,.{digits}f}"
        return middle if self.spread is None or not spread else f"{middle} ±{self.spread:,.{digits}f}"


def average_over_seeds(values: Sequence[float | None]) -> FigureValue | None:
    """Return mean and spread. None if a seed has no value, because the others' mean would be of other runs."""
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    return FigureValue(sum(known) / len(known), (max(known) - min(known)) / 2 if len(known) > 1 else None)


def select_columns(figures: Sequence[SimulationFigures]) -> list[FigureColumn]:
    """Return the columns to print for these figures."""
    return [column for column in COLUMNS if column.always or any(column.of(own) for own in figures)]


def find_best(column: FigureColumn, values: Sequence[FigureValue | None]) -> set[int]:
    """Return the rows with the best printed value; empty if no end is better or all values are equal."""
    known = {row: round(value.mean, column.digits) for row, value in enumerate(values) if value is not None}
    if column.better is None or len(set(known.values())) < 2:
        return set()
    best = min(known.values()) if column.better == "less" else max(known.values())
    return {row for row, value in known.items() if value == best}


class Situation(NamedTuple):
    fleet: FleetOption
    load: LoadLevel
    requests_per_s: float | None  # arriving, mean over seeds; None: a closed loop

    def __str__(self) -> str:
        rate = "" if self.requests_per_s is None else f" ({self.requests_per_s:,.4g} requests/s)"
        coming = f"{self.load}{rate}" if self.load.kind == "rho" else str(self.load)
        return f"{self.fleet}, {coming}"


class ComparisonRow(NamedTuple):
    policy: str
    seeds: tuple[SimulationFigures, ...]


class ComparisonTable(NamedTuple):
    situation: Situation
    rows: tuple[ComparisonRow, ...]


class FleetSizes(NamedTuple):
    """Shares of requests served well by fleets that differ only in their size, under the same requests."""

    beside: str  # what all fleets have, and the load
    shares: dict[str, dict[int, FigureValue | None]]  # by policy and number of instances, the smallest fleet first


class CapacityTable(NamedTuple):
    """Capacity of one policy on one fleet."""

    policy: str
    fleet: FleetOption
    kind: str
    load: FigureValue | None  # requests per second or sessions per instance; None: not found for some seed
    requests_per_s: FigureValue | None  # that ended well at that load
    share: FigureValue | None  # of requests that met the limits
    bounded: bool  # False: no higher load was tried, the capacity may be higher


def compare(cells: Iterable[CellResult]) -> list[ComparisonTable]:
    """Return a table per situation. Situations, and policies in each, are in the order of first occurrence."""
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


def compare_sizes(tables: Iterable[ComparisonTable]) -> list[FleetSizes]:
    """Return the fleets of several sizes that got the same requests: those at a rate. A load relative to the fleet
    gives a larger fleet more requests, and so says nothing about its size.
    """
    found: dict[str, dict[str, dict[int, FigureValue | None]]] = {}
    for table in sorted(tables, key=lambda table: table.situation.fleet.instances):
        fleet, load, _ = table.situation
        if load.kind not in ("rate", "recorded"):
            continue
        shares = found.setdefault(f"{fleet.beside}, {load}", {})
        for row in table.rows:
            share = average_over_seeds([own.good_share for own in row.seeds])
            shares.setdefault(row.policy, {})[fleet.instances] = share
    return [
        FleetSizes(beside, shares)
        for beside, shares in found.items()
        if len({size for own in shares.values() for size in own}) > 1
    ]


def summarize_capacities(searches: Iterable[CapacityResult]) -> list[CapacityTable]:
    """Return the capacity of each fleet and policy, over seeds."""
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


class SweepResult(NamedTuple):
    """The results of a run."""

    measured: list[CellResult]
    capacities: list[CapacityResult]
    failed: list[CellFailure]
    interrupted: bool


def encode_results(spec: SweepSpec, cells: Sequence[SweepCell], done: SweepResult) -> bytes:
    """Return the results of a run as one JSON document; `cells` are all that were requested.

    The same options give the same bytes on every machine: the document does not depend on the time or duration of
    the run, or on its number of processes. It has the policies' digests, the profile's numbers and the troubles'
    contents, since names alone are ambiguous. A failure that never ends has the end null.
    """
    document = {
        "warmroute": version("warmroute"),
        "complete": not done.interrupted,
        "asked": asdict(spec),
        "policies": {cell.policy: compute_digest(cell.rules) for cell in cells},
        "profile": asdict(cells[0].scenario.profile),
        "troubles": {cell.fleet.trouble: asdict(cell.scenario.trouble) for cell in cells if cell.fleet.trouble != OFF},
        "cells": [_cell_json(one) for one in done.measured],
        "capacities": [_capacity_json(one) for one in done.capacities],
        "failed": [one._asdict() for one in done.failed],
    }
    return msgspec.json.format(msgspec.json.encode(document, enc_hook=str), indent=1) + b"\n"


def _identify(cell: SweepCell) -> dict[str, Any]:
    return {
        "policy": cell.policy,
        "workload": cell.source.name,
        **cell.fleet._asdict(),
        "load": cell.load._asdict(),
        "seed": cell.seed,
    }


def _cell_json(one: CellResult) -> dict[str, Any]:
    return _identify(one.cell) | {
        "requests_per_s_offered": one.requests_per_s,
        **one.figures._asdict(),
        "virtual_s": one.took_s,
        "decisions": one.decisions,
        "preemptions": one.preemptions,
        "double_bookings": one.double_bookings,
    }


def _capacity_json(one: CapacityResult) -> dict[str, Any]:
    return _identify(one.search.cell) | {
        "share_wanted": one.search.share,
        "best": None if one.best is None else one.best._asdict(),
        "bounded": one.bounded,
        "tried": [tried._asdict() for tried in one.tried],
    }
