"""The benchmark's arithmetic: what a median, a ratio and a bar come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bench.figures import Bar, Line, beside, quantile, spread

FIGURES = st.lists(st.floats(min_value=0.001, max_value=1e9), min_size=1, max_size=50)


def test_a_ratio_is_made_of_values_of_the_same_repetition() -> None:
    line = beside("x", "us", [30.0, 10.0, 20.0], [10.0, 10.0, 40.0], "peer", Bar(1.0, "ratio"))
    assert line.ratios == [3.0, 1.0, 0.5]  # the medians' ratio would be 20 / 10 = 2
    assert line.judged == 1.0
    assert line.met is True


def test_a_bar_of_at_least_wants_us_that_many_times_better() -> None:
    line = beside("x", "ms", [2.0, 4.0, 5.0], [80.0, 80.0, 80.0], "peer", Bar(20.0, "ratio", ">="))
    assert line.ratios == [40.0, 20.0, 16.0]
    assert line.met is True  # their median is 20


def test_a_bar_of_our_own_figure_leaves_the_ratio_as_it_is() -> None:
    line = beside("x", "million/s", [4.0], [2.0], "peer", Bar(1.0, sense=">="))
    assert (line.ratios, line.judged, line.met) == ([2.0], 4.0, True)


def test_a_peer_with_fewer_repetitions_is_compared_as_far_as_it_goes() -> None:
    assert beside("x", "us", [1.0, 2.0, 3.0], [2.0, 2.0], "peer").ratios == [0.5, 1.0]
    assert beside("x", "us", [1.0], [0.0], "peer").ratios == []  # nothing can be divided by


def test_the_worst_repetition_decides_where_none_may_pass() -> None:
    stalls = [0.0, 0.0, 3.0]
    assert Line("x", "", stalls, bar=Bar(0.0)).met is True
    assert Line("x", "", stalls, bar=Bar(0.0, take="worst")).met is False
    assert Line("x", "", [5.0, 7.0], bar=Bar(6.0, sense=">=", take="worst")).judged == 5.0


def test_what_has_no_bar_or_was_not_measured_is_neither_met_nor_missed() -> None:
    assert Line("x", "us", [1.0]).met is None
    assert Line("x", "us", [], bar=Bar(1.0)).met is None
    assert Line("x", "us", [1.0], bar=Bar(1.0, "ratio")).met is None


@pytest.mark.parametrize(("value", "met"), [(1.0, True), (1.0001, False)])
def test_the_bar_itself_is_still_met(value: float, met: bool) -> None:
    assert Line("x", "us", [value], bar=Bar(1.0)).met is met


def test_a_quantile_is_one_of_the_values() -> None:
    hundred = [float(n) for n in range(1, 101)]
    assert quantile(hundred, 0.99) == 99.0  # 99 of 100 are not above it
    assert quantile(hundred, 0.5) == 50.0
    assert quantile([7.0], 0.99) == 7.0
    with pytest.raises(ValueError, match="no values"):
        quantile([], 0.5)


@given(FIGURES, st.floats(min_value=0, max_value=1))
def test_enough_values_are_not_above_a_quantile(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) <= share * len(values)


def test_a_spread_has_the_digits_that_its_median_deserves() -> None:
    assert spread([155.4, 151.0, 205.2]) == "155 (151-205)"
    assert spread([17.82, 15.0, 18.0]) == "17.8 (15.0-18.0)"
    assert spread([0.906, 0.86, 1.09]) == "0.91 (0.86-1.09)"
    assert spread([2248.0]) == "2,248"
    assert spread([3.0, 3.0]) == "3.00"
    assert spread([0.0, 0.0]) == "0"
    assert spread([]) == "-"
