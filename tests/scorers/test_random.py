from collections import Counter

from scorers.random import Random
from tests.suites.views import a_row, a_view

ROWS = (a_row("a"), a_row("b"), a_row("c"), a_row("d"))


def chosen(number: int, seed: int = 1) -> int:
    costs = list(Random().score(a_view(*ROWS, number=number, seed=seed)))
    return costs.index(min(costs))


def test_all_targets_are_alike() -> None:
    # 4000 draws over 4: 1000 each, standard deviation sqrt(4000 * 1/4 * 3/4) = 27; 5 of those: 137
    counts = Counter(chosen(number) for number in range(4000))
    assert set(counts) == {0, 1, 2, 3}
    assert all(abs(count - 1000) < 137 for count in counts.values())


def test_the_seed_decides() -> None:
    assert [chosen(n) for n in range(50)] == [chosen(n) for n in range(50)]
    assert [chosen(n) for n in range(50)] != [chosen(n, seed=2) for n in range(50)]
