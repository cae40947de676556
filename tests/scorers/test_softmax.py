from collections import Counter
from math import exp

import pytest

from scorers.softmax import Softmax
from tests.suites.views import a_row, a_view

ROWS = (a_row("a"), a_row("b"), a_row("c"))


def picks(picker: Softmax, costs: list[float], draws: int = 4000) -> list[int]:
    counts = Counter(picker.pick(a_view(*ROWS, number=n), costs) for n in range(draws))
    return [counts[i] for i in range(len(costs))]


def test_probabilities_follow_the_formula() -> None:
    # costs 10, 15, 20 are 0, 0.5, 1 of their range; at temperature 0.5: weights 1, exp(-1), exp(-2)
    weights = [1.0, exp(-1), exp(-2)]
    expected = [4000 * weight / sum(weights) for weight in weights]  # 2661, 979, 360
    # the largest standard deviation is sqrt(4000 * 0.665 * 0.335) = 30; 5 of those: 150
    assert picks(Softmax(temperature=0.5), [10.0, 15.0, 20.0]) == pytest.approx(expected, abs=150)


def test_cold_is_the_best_row() -> None:
    assert picks(Softmax(temperature=0.001), [2.0, 1.0, 3.0], draws=200) == [0, 200, 0]


def test_equal_costs_share_evenly() -> None:
    assert picks(Softmax(), [5.0, 5.0, 5.0]) == pytest.approx([1333] * 3, abs=150)


def test_a_row_that_goes_moves_only_its_own_requests() -> None:
    costs = [1.0, 1.0, 1.0]
    for n in range(100):
        view = a_view(*ROWS, number=n)
        before = view.rows[Softmax().pick(view, costs)].target
        fewer = view._replace(rows=ROWS[:2])
        after = fewer.rows[Softmax().pick(fewer, costs[:2])].target
        assert after == before or before == "c/0"


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"temperature: found 0, wanted more than 0"):
        Softmax(temperature=0)
