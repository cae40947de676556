from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.bounded_load import BoundedLoad
from tests.suites.properties import examples
from tests.suites.scorers import check_filter
from tests.suites.views import a_load, a_row, a_view, views


def keep(requests: list[int], factor: float = 1.25) -> list[bool]:
    rows = [a_row(f"h{i}", load=a_load(requests=count)) for i, count in enumerate(requests)]
    return list(BoundedLoad(factor=factor).keep(a_view(*rows)))


def test_nobody_gets_more_than_a_quarter_above_the_average() -> None:
    # ceil(1.25 * (10 + 6 + 3 + 1) / 4) = ceil(6.25) = 7
    assert keep([10, 6, 3, 0]) == [False, True, True, True]
    # ceil(1.25 * (10 + 7 + 3 + 0 + 1) / 4) = ceil(6.56) = 7: one with 7 would have 8
    assert keep([10, 7, 3, 0]) == [False, False, True, True]


def test_an_idle_fleet_takes_one_each() -> None:
    # ceil(1.25 * 1 / 3) = 1, and with one request ceil(1.25 * 2 / 3) = 1
    assert keep([0, 0, 0]) == [True, True, True]
    assert keep([1, 0, 0]) == [False, True, True]


def test_a_looser_bound_keeps_more() -> None:
    assert keep([10, 6, 3, 0], factor=2.2) == [True, True, True, True]  # ceil(2.2 * 5) = 11


@examples(200)
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.floats(1, 4))
def test_somebody_always_stays_and_the_idlest_does(requests: list[int], factor: float) -> None:
    kept = keep(requests, factor)
    assert kept[requests.index(min(requests))]
    bound = factor * (sum(requests) + 1) / len(requests)
    assert all(count < bound + 1 for count, stays in zip(requests, kept, strict=True) if stays)
    assert all(count >= bound for count, stays in zip(requests, kept, strict=True) if not stays)


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"factor: found 0\.9, wanted at least 1"):
        BoundedLoad(factor=0.9)


@pytest.mark.parametrize("factor", [1.0, 1.25, 3.0])
@examples(50)
@given(st.data(), views())
def test_contract(factor: float, data: Any, view: Any) -> None:
    check_filter(BoundedLoad(factor=factor), view, data.draw(st.permutations(range(len(view.rows)))))
