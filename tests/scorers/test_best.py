from collections import Counter

from scorers.best import Best
from tests.suites.views import a_row, a_view

ROWS = (a_row("a"), a_row("b"), a_row("c"), a_row("d"))


def test_the_least_cost_wins() -> None:
    assert Best().pick(a_view(*ROWS), [3.0, 1.0, 2.0, 1.5]) == 1


def test_ties_fall_evenly_and_never_on_the_dearer() -> None:
    # 3000 draws over 3: 1000 each, standard deviation sqrt(3000 * 1/3 * 2/3) = 26; 5 of those: 130
    counts = Counter(Best().pick(a_view(*ROWS, number=n), [1.0, 1.0, 2.0, 1.0]) for n in range(3000))
    assert set(counts) == {0, 1, 3}
    assert all(abs(count - 1000) < 130 for count in counts.values())
