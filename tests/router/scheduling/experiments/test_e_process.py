"""Money won by betting: by hand, in expectation, and when things change."""

from __future__ import annotations

from math import log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.scheduling.experiments.e_process import BETS, CAP, EProcess

unit_values = st.floats(0, 1)


def after(evidence: EProcess, on_x: bool, value: float, centre: float) -> EProcess:
    """The evidence with one more unit; the one given stays as it was."""
    copy = EProcess(evidence._chance, evidence._ratio)
    for name in EProcess.__slots__:
        setattr(copy, name, getattr(evidence, name))
    copy.observe(on_x, value, centre)
    return copy


def test_one_bet_by_hand() -> None:
    # p = 0.1, c = 0.1: D = 0.9 / 0.1 = 9, scaled by max(0.1/0.1, 0.9/0.9) = 1. Half of the stake is bet at unit 1:
    # 1/2 (1 + 9 b) averaged over the bets, and 1/2 kept.
    evidence = EProcess(0.1)
    evidence.observe(True, 1.0, 0.1)
    assert evidence.value == pytest.approx(0.5 * (1 + 9 * sum(BETS) / len(BETS)) + 0.5)


def test_the_ratio_stretches_the_other_arms_values() -> None:
    # p = 0.5, c = 0.4, r = 1.5, on Y with value 0.4: (0.4 - 0.6) / 0.5 = -0.4, scaled by max(0.8, 2.2): -0.4 / 2.2
    evidence = EProcess(0.5, 1.5)
    evidence.observe(False, 0.4, 0.4)
    assert evidence.value == pytest.approx(1 - 0.5 * 0.4 / 2.2 * sum(BETS) / len(BETS))


@given(
    st.floats(0.02, 0.98),
    st.floats(1, 5),
    st.lists(st.tuples(st.booleans(), unit_values, st.floats(0.01, 0.99)), max_size=30),
    unit_values,
    unit_values,
    st.floats(0.01, 0.99),
)
def test_the_money_is_not_expected_to_grow_where_the_claim_is_wrong(
    chance: float, ratio: float, past: list[tuple[bool, float, float]], on_y: float, times: float, centre: float
) -> None:
    """The unit would show r `on_y` or less on X and `on_y` on Y; only on which it falls is chance."""
    evidence = EProcess(chance, ratio)
    for unit in past:
        evidence.observe(*unit)
    on_x = min(1.0, ratio * on_y * times)
    expected = chance * after(evidence, True, on_x, centre).value
    expected += (1 - chance) * after(evidence, False, on_y, centre).value
    assert expected <= evidence.value * (1 + 1e-9)
    assert evidence.value > 0


def test_it_grows_where_the_claim_is_right() -> None:
    evidence, dice = EProcess(0.5), Random(3)
    for _ in range(400):
        on_x = dice.random() < 0.5
        evidence.observe(on_x, float(dice.random() < (0.3 if on_x else 0.1)), 0.2)
    assert evidence.value > 1000
    assert evidence.peak >= evidence.value


def test_a_good_arm_that_breaks_is_found_out_soon() -> None:
    """A thousand units in which X is far below Y, then it turns: without fresh stakes it would take as many again."""
    evidence, dice = EProcess(0.5), Random(4)
    for _ in range(1000):
        on_x = dice.random() < 0.5
        evidence.observe(on_x, 0.0 if on_x else 1.0, 0.5)
    assert evidence.value < 0.002
    units = 0
    while evidence.value < 1000:
        on_x = dice.random() < 0.5
        evidence.observe(on_x, 1.0 if on_x else 0.0, 0.5)
        units += 1
    assert units < 100


def test_winnings_are_capped_so_that_a_change_shows() -> None:
    evidence = EProcess(0.5)
    for i in range(5000):
        evidence.observe(i % 2 == 0, 1.0 if i % 2 == 0 else 0.0, 0.5)
    assert evidence.value <= CAP + 1
    for i in range(100):
        evidence.observe(i % 2 == 0, 0.0 if i % 2 == 0 else 1.0, 0.5)
    assert evidence.value < 1000


def test_units_needed_is_about_right() -> None:
    dice = Random(5)

    def observe(evidence: EProcess) -> None:
        on_x = dice.random() < 0.5
        evidence.observe(on_x, float(dice.random() < (0.35 if on_x else 0.2)), 0.25)

    evidence = EProcess(0.5)
    for _ in range(500):
        observe(evidence)
    bar = 1e5 * evidence.value
    told = evidence.units_needed(bar)
    assert told is not None
    units = 0
    while evidence.value < bar:
        observe(evidence)
        units += 1
    assert units / 2 < told < units * 2
    assert evidence.units_needed(bar) == 0


def test_what_does_not_grow_is_not_extrapolated() -> None:
    evidence = EProcess(0.5)
    assert evidence.units_needed(100) is None
    for on_x in (True, False) * 20:
        evidence.observe(on_x, 0.5, 0.25)
    assert evidence.units_needed(100) is None


def bet_on(units: list[tuple[bool, float]], others: list[EProcess] | None = None) -> EProcess:
    evidence = EProcess(0.5)
    evidence.set_others([other.counts() for other in others or []])
    for on_x, value in units:
        evidence.observe(on_x, value, 0.5)
    return evidence


def test_routers_that_count_different_units_multiply_what_each_bet_won() -> None:
    units = [(n % 2 == 0, 0.8 if n % 2 == 0 else 0.4) for n in range(60)]
    parts = [bet_on(units[n::3]) for n in range(3)]
    alone = bet_on(units)
    together = [bet_on(units[n::3], [parts[m] for m in range(3) if m != n]).value for n in range(3)]
    assert together == pytest.approx([together[0]] * 3)
    assert max(part.value for part in parts) < together[0] < alone.value
    assert log(alone.value / together[0]) < 2.5  # nats, for two more routers
    assert parts[0].units_needed(1e6) > bet_on(units[::3], parts[1:]).units_needed(1e6)  # type: ignore[operator]


def test_without_other_routers_the_evidence_is_its_own() -> None:
    units = [(True, 0.9), (False, 0.2), (True, 0.7)]
    evidence = bet_on(units)
    value = evidence.value
    evidence.set_others([bet_on(units).counts()])
    assert evidence.value > value
    evidence.set_others([])
    assert evidence.value == pytest.approx(value)


@given(
    st.lists(st.tuples(st.booleans(), unit_values), max_size=20),
    st.lists(st.tuples(st.booleans(), unit_values), max_size=20),
    unit_values,
)
def test_the_money_of_several_routers_is_not_expected_to_grow_either(
    mine: list[tuple[bool, float]], theirs: list[tuple[bool, float]], value: float
) -> None:
    """A unit of equal arms falls on either with a probability of a half."""
    before = bet_on(mine, [bet_on(theirs)])
    ends = [bet_on([*mine, (on_x, value)], [bet_on(theirs)]).value for on_x in (True, False)]
    assert sum(ends) / 2 <= before.value * (1 + 1e-9)
