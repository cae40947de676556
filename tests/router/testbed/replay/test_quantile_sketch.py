from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.testbed.replay.quantile_sketch import FLOOR, QuantileSketch


def of(values: list[float]) -> QuantileSketch:
    quantiles = QuantileSketch()
    for value in values:
        quantiles.add(value)
    return quantiles


@given(st.lists(st.floats(-1e7, 1e7), min_size=1), st.floats(0, 1))
def test_within_one_percent_of_the_true_one(values: list[float], share: float) -> None:
    true = sorted(values)[max(1, ceil(share * len(values))) - 1]
    assert of(values).at(share) == pytest.approx(true, rel=0.0101, abs=FLOOR)


def test_both_ends() -> None:
    # of -100, -10, 0, 10, ..., 70 the tenth part is the first, nine tenths are the ninth
    values = [-100.0, -10.0, *(10.0 * number for number in range(8))]
    assert of(values).at(0.1) == pytest.approx(-100, rel=0.01)
    assert of(values).at(0.9) == pytest.approx(60, rel=0.01)
    assert of(values).at(0.25) == 0


def test_none_of_nothing() -> None:
    assert QuantileSketch().at(0.5) is None


def test_a_million_values_need_few_buckets() -> None:
    quantiles = of([0.37 * number - 20_000 for number in range(100_000)])
    assert len(quantiles._counts) < 2_000
