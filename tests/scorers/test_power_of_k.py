from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.power_of_k import PowerOfK
from tests.suites.properties import examples
from tests.suites.scorers import check_picker
from tests.suites.views import a_row, a_view, views

ROWS = tuple(a_row(name) for name in "abcd")


def picks(picker: PowerOfK, costs: list[float], draws: int = 3000) -> list[int]:
    counts = Counter(picker.pick(a_view(*ROWS, number=n), costs) for n in range(draws))
    return [counts[i] for i in range(len(costs))]


def test_the_cheaper_of_two() -> None:
    # of the 6 pairs the cheapest row is best in 3, the next in 2, the third in 1, the dearest in none;
    # the largest standard deviation is sqrt(3000 * 0.5 * 0.5) = 27; 5 of those: 137
    assert picks(PowerOfK(), [1.0, 2.0, 3.0, 4.0]) == pytest.approx([1500, 1000, 500, 0], abs=137)


def test_equals_share_evenly() -> None:
    # 750 each, standard deviation sqrt(3000 * 1/4 * 3/4) = 24; 5 of those: 119
    assert picks(PowerOfK(), [5.0, 5.0, 5.0, 5.0]) == pytest.approx([750] * 4, abs=119)


def test_one_is_chance_and_all_is_the_best() -> None:
    assert picks(PowerOfK(k=1), [1.0, 2.0, 3.0, 4.0]) == pytest.approx([750] * 4, abs=119)
    assert picks(PowerOfK(k=4), [2.0, 1.0, 3.0, 4.0], draws=50) == [0, 50, 0, 0]


def test_fewer_rows_than_k() -> None:
    assert PowerOfK(k=5).pick(a_view(*ROWS[:2]), [2.0, 1.0]) == 1
    assert PowerOfK().pick(a_view(ROWS[0]), [2.0]) == 0


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"k: found 0, wanted at least 1"):
        PowerOfK(k=0)


@pytest.mark.parametrize("k", [1, 2, 3])
@examples(50)
@given(st.data(), views())
def test_contract(k: int, data: Any, view: Any) -> None:
    count = len(view.rows)
    costs = data.draw(st.lists(st.sampled_from([0.0, 0.5, 1.0, -3.0, 1e6]), min_size=count, max_size=count))
    check_picker(PowerOfK(k=k), view, costs, data.draw(st.permutations(range(count))))
