from collections import Counter

from scorers.best import Best
from scorers.contract import Row
from tests.suites.views import a_row, a_view

ROWS = (a_row("a"), a_row("b"), a_row("c"), a_row("d"))


def test_the_least_cost_wins() -> None:
    assert Best().pick(a_view(*ROWS), [3.0, 1.0, 2.0, 1.5]) == 1


def test_ties_fall_evenly_and_never_on_the_dearer() -> None:
    # 3000 draws over 3: 1000 each, standard deviation sqrt(3000 * 1/3 * 2/3) = 26; 5 of those: 130
    counts = Counter(Best().pick(a_view(*ROWS, number=n), [1.0, 1.0, 2.0, 1.0]) for n in range(3000))
    assert set(counts) == {0, 1, 3}
    assert all(abs(count - 1000) < 130 for count in counts.values())


def roomy(name: str, held: int | None, capacity: int | None = 1600, block: int | None = 16) -> Row:
    return a_row(name)._replace(held_tokens=held, capacity_tokens=capacity, block_tokens=block)


def test_among_ties_the_most_free_memory_wins_and_chance_only_among_equals_in_that() -> None:
    rows = roomy("a", 800), roomy("b", 160), roomy("c", 161), roomy("d", 0)
    chosen = Counter(Best().pick(a_view(*rows, number=n), [1.0, 1.0, 1.0, 2.0]) for n in range(50))
    assert set(chosen) == {1}, "the fourth is free, and dearer"
    rows = roomy("a", 800), roomy("b", 160), roomy("c", 160), roomy("d", 5000)
    chosen = Counter(Best().pick(a_view(*rows, number=n), [1.0, 1.0, 1.0, 1.0]) for n in range(50))
    assert set(chosen) == {1, 2}


def test_memory_that_is_not_known_of_each_does_not_count() -> None:
    for unknown in (roomy("b", None), roomy("b", 0, capacity=None), roomy("b", 0, block=None)):
        chosen = {Best().pick(a_view(roomy("a", 800), unknown, number=n), [1.0, 1.0]) for n in range(50)}
        assert chosen == {0, 1}
