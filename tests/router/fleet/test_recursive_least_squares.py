"""The line through times by itself; what it makes of an engine's times is tests/router/fleet/test_latency_model.py."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.recursive_least_squares import RecursiveLeastSquares
from tests.suites.properties import examples


def test_it_begins_at_its_prior() -> None:
    line = RecursiveLeastSquares([5.0, 0.0, 2.0])
    assert line.theta == [5.0, 0.0, 2.0]
    assert (line.samples, line.age_s(7.0)) == (0, None)


@pytest.mark.parametrize("dimensions", [1, 2, 3, 4])
def test_finds_any_number_of_coefficients(dimensions: int) -> None:
    dice = random.Random(dimensions)
    truth = [dice.uniform(1, 50) for _ in range(dimensions)]
    line = RecursiveLeastSquares([10.0] * dimensions)
    for i in range(300):
        x = [dice.uniform(0, 10) for _ in truth]
        line.observe(x, sum(a * b for a, b in zip(truth, x, strict=True)), float(i))
    assert line.theta == pytest.approx(truth, rel=0.1)
    assert (line.samples, line.age_s(301.0)) == (300, 2.0)


def test_a_rest_is_as_noisy_as_the_time_it_is_left_of() -> None:
    """100 ms beside 10 s that were explained otherwise are within their noise: hardly a reason to move."""
    bare, rest = RecursiveLeastSquares([10.0]), RecursiveLeastSquares([10.0])
    bare.observe([1.0], 100.0, 0.0)
    rest.observe([1.0], 100.0, 0.0, beside_ms=10_000.0)
    assert bare.theta[0] > 60
    assert 10 < rest.theta[0] < 10.1


@examples(100)
@given(
    st.lists(
        st.tuples(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(-1e6, 1e6), st.floats(0, 1e6)),
        max_size=60,
    )
)
def test_no_coefficient_is_ever_negative_or_lost(samples: list[tuple[float, float, float, float]]) -> None:
    line = RecursiveLeastSquares([1.0, 10.0])
    for i, (a, b, ms, beside_ms) in enumerate(samples):
        line.observe([a, b], ms, float(i), beside_ms)
        assert all(0 <= coefficient < 1e12 for coefficient in line.theta)


def test_coefficients_are_shown_to_six_digits_and_learned_in_full() -> None:
    line = RecursiveLeastSquares([1 / 3, 2e6 / 3])
    assert line.coefficients == (0.333333, 666667.0)
    assert line.theta == [1 / 3, 2e6 / 3]
    line.observe([1.0, 0.0], 50.0, 1.0)
    assert line.coefficients == tuple(float(f"{theta:.6g}") for theta in line.theta)
    assert line.coefficients != (0.333333, 666667.0)


def test_ages_are_whole_milliseconds() -> None:
    line = RecursiveLeastSquares([1.0])
    line.observe([1.0], 50.0, 1.0)
    assert line.age_s(1.0 + 2 / 3) == 0.667


def test_a_smaller_floor_believes_small_times_sooner() -> None:
    """0.2 ms more than a predicted 1 ms: nothing beside 2 ms of noise, a good deal beside 0.1."""
    deaf, keen = RecursiveLeastSquares([1.0]), RecursiveLeastSquares([1.0], floor_ms=0.1)
    for line in (deaf, keen):
        line.observe([1.0], 1.2, 0.0)
    # P = 9; noise (2 + 0.15 * 1.2)^2 = 4.75 and (0.1 + 0.18)^2 = 0.078: gains 9 / 13.75 = 0.65 and 9 / 9.078 = 0.99
    assert deaf.theta[0] == pytest.approx(1 + 0.2 * 9 / (9 + 2.18**2))
    assert keen.theta[0] == pytest.approx(1 + 0.2 * 9 / (9 + 0.28**2))
