"""Cells side by side."""

from __future__ import annotations

import pytest

from router.testbed.simulator.scenario import Trouble
from router.testbed.sweep.capacity import CapacityResult, CapacitySearch, TriedLoad
from router.testbed.sweep.cells import LoadLevel
from router.testbed.sweep.columns import FigureValue
from router.testbed.sweep.comparison import Situation, compare, summarize_capacities
from router.testbed.sweep.fleets import FleetOption
from tests.router.testbed.sweep.cells import a_cell, a_result


def test_policies_meet_where_all_else_is_alike() -> None:
    results = [
        a_result(a_cell(policy, instances=size, seed=seed), requests=size * 10 + seed)
        for seed in (1, 2)
        for size in (4, 8)
        for policy in ("b", "a")
    ]
    tables = compare(results)
    assert [table.situation.fleet.instances for table in tables] == [4, 8]
    assert [[row.policy for row in table.rows] for table in tables] == [["b", "a"], ["b", "a"]]
    assert [figures.requests for figures in tables[1].rows[0].seeds] == [81, 82]


def test_loads_pools_and_troubles_are_situations_of_their_own() -> None:
    cells = [
        a_cell(load=LoadLevel("rho", rho), pool=pool, trouble=(trouble, Trouble()))
        for rho in (0.6, 0.9)
        for pool in ("off", "40000")
        for trouble in ("off", "slow")
    ]
    assert len(compare(a_result(cell) for cell in cells)) == 8


def test_a_situation_says_what_comes() -> None:
    (open_loop,) = compare([a_result(rate=4.0), a_result(a_cell(seed=2), rate=5.0)])
    assert str(open_loop.situation) == "8 instances, no pool, rho 0.9 (4.5 requests/s)"
    (closed,) = compare([a_result(a_cell(load=LoadLevel("sessions", 16), pool="40000", instances=1), rate=None)])
    assert str(closed.situation) == "1 instance, pool at 40,000 tokens/s, 16 sessions per instance"
    assert str(Situation(FleetOption(2), LoadLevel("rate", 7.5), 7.5)) == "2 instances, no pool, 7.5 requests/s"


def found(best: TriedLoad | None, seed: int = 1, bounded: bool = True) -> CapacityResult:
    return CapacityResult(CapacitySearch(a_cell(load=LoadLevel("rate", 1.0), seed=seed)), best, bounded, ())


def test_a_capacity_is_the_mean_over_seeds() -> None:
    (one,) = summarize_capacities([found(TriedLoad(4.0, 0.95, 3.9)), found(TriedLoad(6.0, 0.91, 5.7), seed=2)])
    assert one.load == FigureValue(5.0, 1.0)
    assert one.share is not None
    assert one.share.mean == pytest.approx(0.93)
    assert one.bounded


def test_a_seed_without_capacity_or_bound_says_so_for_all() -> None:
    (one,) = summarize_capacities([found(TriedLoad(4.0, 0.95, 3.9), bounded=False), found(None, seed=2)])
    assert one.load is None
    assert not one.bounded
