"""The learned prefill curve against synthetic engines whose truth is known."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.config.schema import SpeedPrior
from router.fleet.speed import Curve
from scorers.contract import Speed

PRIOR = SpeedPrior()
TRUTH = Speed(35.0, 40.0, 6.0, 0, None, None, None, None)
PROBES = [(200, 0), (2000, 0), (2000, 30_000), (20_000, 0), (500, 60_000)]


def traffic(dice: random.Random) -> tuple[int, int]:
    """Chats and agents: short and long, cold and warm."""
    return int(10 ** dice.uniform(1.5, 4.3)), dice.choice((0, 0, int(10 ** dice.uniform(2, 4.8))))


def taught(curve: Curve, truth: Speed, samples: int, seed: int, noise: float = 0.1, outliers: float = 0.0) -> None:
    dice = random.Random(seed)
    for i in range(samples):
        new, context = traffic(dice)
        ms = truth.prefill_ms(new, context) * max(0.1, dice.gauss(1.0, noise))
        if dice.random() < outliers:
            ms = ms * 10 + 5000
        curve.observe(new, context, ms, float(i))


def worst_error(curve: Curve, truth: Speed) -> float:
    speed = curve.speed(1e6)
    return max(abs(speed.prefill_ms(*probe) / truth.prefill_ms(*probe) - 1) for probe in PROBES)


def test_the_prior_until_somebody_showed_anything() -> None:
    speed = Curve(PRIOR).speed(12.0)
    assert speed[:3] == (PRIOR.base_ms, PRIOR.us_per_token, PRIOR.ns_per_token_context)
    assert (speed.samples, speed.age_s) == (0, None)


@pytest.mark.parametrize("seed", range(5))
def test_finds_the_curve_in_noise(seed: int) -> None:
    curve = Curve(PRIOR)
    taught(curve, TRUTH, 200, seed)
    assert worst_error(curve, TRUTH) < 0.2
    assert curve.speed(200.0).samples == 200


@pytest.mark.parametrize("seed", range(5))
def test_a_few_outliers_do_not_matter(seed: int) -> None:
    curve = Curve(PRIOR)
    taught(curve, TRUTH, 400, seed, outliers=0.03)
    assert worst_error(curve, TRUTH) < 0.35


@pytest.mark.parametrize("factor", [0.1, 20.0])
def test_leaves_a_wrong_prior_within_a_dozen_samples(factor: float) -> None:
    truth = Speed(10.0 * factor, 100.0 * factor, 2.0 * factor, 0, None, None, None, None)
    curve = Curve(PRIOR)
    taught(curve, truth, 12, seed=3)
    assert curve.speed(12.0).prefill_ms(4000, 0) == pytest.approx(truth.prefill_ms(4000, 0), rel=0.3)


def test_follows_an_engine_that_became_three_times_slower() -> None:
    curve = Curve(PRIOR)
    taught(curve, TRUTH, 1000, seed=1)
    slower = Speed(105.0, 120.0, 18.0, 0, None, None, None, None)
    taught(curve, slower, 300, seed=2)
    assert worst_error(curve, slower) < 0.3


def test_one_odd_prompt_after_a_monotonous_day_does_not_throw_it() -> None:
    curve = Curve(PRIOR)
    for i in range(5000):
        curve.observe(100, 0, TRUTH.prefill_ms(100, 0), float(i))
    curve.observe(20_000, 0, TRUTH.prefill_ms(20_000, 0), 5001.0)
    speed = curve.speed(5002.0)
    assert speed.prefill_ms(100, 0) == pytest.approx(TRUTH.prefill_ms(100, 0), rel=0.3)
    assert speed.prefill_ms(20_000, 0) == pytest.approx(TRUTH.prefill_ms(20_000, 0), rel=0.5)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(-5, 200_000), st.integers(-5, 200_000), st.floats(allow_nan=True, allow_infinity=True)),
        max_size=60,
    )
)
def test_whatever_it_is_told_no_cost_is_negative(samples: list[tuple[int, int, float]]) -> None:
    curve = Curve(PRIOR)
    for i, (new, context, ms) in enumerate(samples):
        curve.observe(new, context, ms, float(i))
    speed = curve.speed(100.0)
    assert all(0 <= coefficient < float("inf") for coefficient in speed[:3])


def test_a_curve_without_a_base_stays_right() -> None:
    """The coefficient that would be negative is held at 0 and the others explain the rest."""
    truth = Speed(0.0, 50.0, 0.0, 0, None, None, None, None)
    curve = Curve(PRIOR)
    taught(curve, truth, 200, seed=4)
    assert curve.speed(0.0).prefill_ms(10_000, 0) == pytest.approx(500, rel=0.1)


def test_age_is_since_the_last_sample_and_good_to_a_second() -> None:
    curve = Curve(PRIOR)
    curve.observe(1000, 0, 100.0, 10.0)
    fresh = curve.speed(10.5)
    assert fresh.age_s == 0.5
    assert curve.speed(11.4) is fresh, "handed on, not rebuilt"
    assert curve.speed(13.0).age_s == 3.0
