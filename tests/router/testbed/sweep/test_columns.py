"""Figures as columns: what is shown, over seeds, and who is best."""

from __future__ import annotations

import pytest

from router.testbed.sweep.columns import COLUMNS, FigureValue, average_over_seeds, find_best, select_columns
from tests.router.testbed.sweep.cells import some_figures

KEYS = {column.key: column for column in COLUMNS}


def test_over_seeds_mean_and_half_the_distance() -> None:
    assert average_over_seeds([1.0, 4.0, 2.5]) == FigureValue(2.5, 1.5)
    assert average_over_seeds([2.0]) == FigureValue(2.0, None)


def test_a_seed_without_a_value_leaves_none_for_all() -> None:
    assert average_over_seeds([1.0, None]) is None
    assert average_over_seeds([]) is None


def test_shown_with_its_spread_where_there_is_one() -> None:
    assert FigureValue(1234.567, None).shown(1) == "1,234.6"
    assert FigureValue(2.5, 1.5).shown(2) == "2.50 ±1.50"
    assert FigureValue(2.5, 1.5).shown(2, spread=False) == "2.50"


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
