"""The grid's arithmetic: who loses how much, who is eligible, whose standing is how good, who goes on."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as some

from tests.agreement.regret import (
    NEAR,
    Regret,
    Score,
    lost_to_trouble,
    means,
    promising,
    regrets,
    results_of,
    standings,
)

SCORES = [
    Score("a", "fast", 10.0, 1.0),
    Score("a", "slow", 9.8, 2.0),  # 2 % less throughput, twice the p90
    Score("a", "lazy", 5.0, 0.1),  # serves half, and so hardly waits: not eligible
]


def regret_of(arm: str, found: list[Regret]) -> Regret:
    return next(regret for regret in found if regret.arm == arm)


def test_p90_is_held_against_the_arms_near_the_best_throughput() -> None:
    found = regrets(SCORES)
    assert regret_of("fast", found) == Regret("a", "fast", 0.0, 0.0)
    slow = regret_of("slow", found)
    assert (slow.loss, slow.excess) == pytest.approx((0.02, 1.0))
    lazy = regret_of("lazy", found)
    assert lazy.loss == 0.5
    assert lazy.excess == pytest.approx(-0.9)  # 0.1 s against 1.0 s: negative, yet 50 % lost keep it out of the bar
    assert not NEAR.holds(lazy)


def test_a_result_names_the_best_of_its_cell() -> None:
    (result,) = results_of("slow", SCORES)
    assert (result.own.arm, result.fastest.arm, result.soonest.arm) == ("slow", "fast", "fast")
    assert result.regret == regret_of("slow", regrets(SCORES))
    assert results_of("nobody", SCORES) == []


def test_seeds_are_averaged_before_they_are_compared() -> None:
    scores = [Score("a", "x", 1.0, 2.0), Score("a", "x", 3.0, 4.0), Score("b", "x", 7.0, 7.0)]
    assert means(scores) == [Score("a", "x", 2.0, 3.0), Score("b", "x", 7.0, 7.0)]


def test_whoever_answered_nobody_is_infinitely_worse() -> None:
    found = regrets([Score("a", "dead", 0.0, math.inf), Score("a", "alive", 1.0, 1.0)])
    assert regret_of("dead", found) == Regret("a", "dead", 1.0, math.inf)
    (first, last) = standings(found)
    assert (first.arm, last.arm, last.p90) == ("alive", "dead", math.inf)


def test_a_standing_sums_throughput_and_takes_the_geometric_mean_of_p90() -> None:
    found = [Regret("a", "x", 0.0, 0.0), Regret("b", "x", 0.1, 3.0)]
    (standing,) = standings(found)
    assert standing.within == 0.5
    assert (standing.worst_loss, standing.worst_excess) == (0.1, 3.0)
    assert standing.throughput == pytest.approx(0.95)  # (1 + 0.9) / 2
    assert standing.p90 == pytest.approx(2.0)  # sqrt(1 x 4)


def test_trouble_is_held_against_the_same_arm_without_it() -> None:
    scores = {("a/lost", "x"): Score("a/lost", "x", 9.0, 3.0), ("a", "x"): Score("a", "x", 10.0, 2.0)}
    (lost,) = lost_to_trouble(scores, {"a/lost": "a"})
    assert lost.cell == "a/lost"
    assert (lost.loss, lost.excess) == pytest.approx((0.1, 0.5))


def test_the_best_of_any_cell_goes_on_and_so_does_the_default() -> None:
    scores = [
        Score("a", "one", 10.0, 1.0), Score("a", "two", 10.0, 1.2), Score("a", "three", 5.0, 9.0),
        Score("b", "one", 10.0, 1.0), Score("b", "two", 10.0, 1.2), Score("b", "three", 5.0, 9.0),
        Score("c", "one", 5.0, 9.0), Score("c", "two", 6.0, 9.0), Score("c", "three", 10.0, 1.0),
    ]  # fmt: skip
    assert set(promising(regrets(scores), 0, ())) == {"one", "three"}  # each the best somewhere
    assert set(promising(regrets(scores), 0, ("two", "unknown"))) == {"one", "two", "three"}


@given(some.dictionaries(some.text("ab", min_size=1), some.tuples(some.floats(0.01, 1e3), some.floats(0.01, 1e3)),
                         min_size=1, max_size=6))  # fmt: skip
def test_somebody_is_best_in_every_cell(arms: dict[str, tuple[float, float]]) -> None:
    found = regrets(Score("a", arm, *reached) for arm, reached in arms.items())
    assert min(regret.loss for regret in found) == 0
    assert any(regret.excess == 0 and regret.loss <= 0.03 + 1e-9 for regret in found)
