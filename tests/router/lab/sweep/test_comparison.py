"""Cells side by side: figures as columns, over seeds, with the best marked."""

from __future__ import annotations

import pytest

from router.lab.simulator.scenario import Trouble
from router.lab.sweep.capacity import CapacityResult, CapacitySearch, TriedLoad
from router.lab.sweep.cells import FleetOption, LoadLevel
from router.lab.sweep.comparison import (
    COLUMNS,
    FigureValue,
    Situation,
    average_over_seeds,
    compare,
    find_best,
    select_columns,
    summarize_capacities,
)
from tests.router.lab.sweep.cells import a_cell, a_result, some_figures


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


KEYS = {column.key: column for column in COLUMNS}


def test_over_seeds_mean_and_half_the_distance() -> None:
    assert average_over_seeds([1.0, 4.0, 2.5]) == FigureValue(2.5, 1.5)
    assert average_over_seeds([2.0]) == FigureValue(2.0, None)


def test_a_seed_without_a_value_leaves_none_for_all() -> None:
    assert average_over_seeds([1.0, None]) is None
    assert average_over_seeds([]) is None


def test_shown_with_its_spread_where_there_is_one() -> None:
    assert FigureValue(1234.567, None).format(1) == "1,234.6"
    assert FigureValue(2.5, 1.5).format(2) == "2.50 ±1.50"
    assert FigureValue(2.5, 1.5).format(2, spread=False) == "2.50"


def test_less_is_better_for_times_and_more_for_throughput() -> None:
    values = [FigureValue(1.0, None), FigureValue(2.0, None), None]
    assert find_best(KEYS["ttft_p90"], values) == {0}
    assert find_best(KEYS["requests_per_s"], values) == {1}


def test_nobody_is_best_where_all_are_shown_alike_or_nothing_is_better() -> None:
    assert find_best(KEYS["ttft_p90"], [FigureValue(1.001, None), FigureValue(1.002, None)]) == set()
    assert find_best(KEYS["ttft_p90"], [FigureValue(1.0, None)]) == set()
    assert find_best(KEYS["local"], [FigureValue(10.0, None), FigureValue(20.0, None)]) == set()


def test_equals_are_all_the_best() -> None:
    assert find_best(KEYS["hit"], [FigureValue(90.0, None), FigureValue(50.0, None), FigureValue(90.01, None)]) == {
        0,
        2,
    }


@pytest.mark.parametrize(("field", "key"), [("shed", "shed"), ("pool_share", "pool"), ("waited_p90_s", "waited_p90")])
def test_what_nobody_has_takes_no_room(field: str, key: str) -> None:
    nobody = some_figures(shed=0, pool_share=0.0, waited_p50_s=None, waited_p90_s=None)
    assert key not in {column.key for column in select_columns([nobody])}
    assert key in {column.key for column in select_columns([nobody, nobody._replace(**{field: 0.5})])}


def test_shares_are_percent_and_tpot_is_milliseconds() -> None:
    own = some_figures(local_share=0.25, host_share=0.05, pool_share=0.5, tpot_mean_s=0.0125)
    assert KEYS["hit"].of(own) == pytest.approx(80.0)
    assert KEYS["local"].of(own) == pytest.approx(25.0)
    assert KEYS["tpot"].of(own) == pytest.approx(12.5)
    assert KEYS["tpot"].of(own._replace(tpot_mean_s=None)) is None
