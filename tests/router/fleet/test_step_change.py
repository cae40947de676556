"""Step changes of an engine's speed are found within three samples, and outliers are none."""

from __future__ import annotations

import pytest

from router.config.schema import SpeedPrior
from router.fleet.latency_model import LatencyModel
from router.fleet.step_change import RUN, STALE_S
from tests.router.fleet.step_rates import LEARNED, TRUTH, Series
from tests.router.fleet.test_instance import a_target

USUAL_MS = TRUTH.prefill_ms(1000, 0)


def learned(*factors: float) -> LatencyModel:
    """Return the model of an engine whose last prefills, after some usual ones, took so many times as long as usual."""
    model = LatencyModel(SpeedPrior())
    for i, factor in enumerate((1.0,) * 30 + factors):
        model.observe_prefill(1000, 0, USUAL_MS * factor, float(i))
    return model


def priced(model: LatencyModel, now: float = 35.0) -> float:
    """Return how many times the usual time a prefill is expected to take."""
    return model.own(now).prefill_ms(1000, 0) / USUAL_MS


@pytest.mark.parametrize("factor", [2.0, 5.0, 20.0])
def test_three_slow_prefills_in_a_row_are_a_step(factor: float) -> None:
    assert learned(*[factor] * (RUN - 1)).slowdown == 1.0
    model = learned(*[factor] * RUN)
    assert model.slowdown == pytest.approx(factor, rel=0.1)
    assert priced(model) == pytest.approx(factor, rel=0.1)


def test_an_engine_that_becomes_faster_is_not_slow_but_priced() -> None:
    model = learned(*[0.2] * RUN)
    assert model.slowdown == 1.0
    assert priced(model) == pytest.approx(0.2, rel=0.2)


@pytest.mark.parametrize("factors", [[9, 9, 1], [9, 0.1, 9], [1, 9, 9, 1.1]])
def test_outliers_are_no_step(factors: list[float]) -> None:
    model = learned(*factors * 3)
    assert model.slowdown == 1.0
    assert priced(model) < 1.6


def test_the_size_of_a_step_is_the_median() -> None:
    assert learned(4.8, 90.0, 5.2).slowdown == pytest.approx(5.2, rel=0.1)


def test_jitter_of_short_prefills_is_no_step() -> None:
    model = LatencyModel(SpeedPrior())
    for i in range(100):
        model.observe_prefill(16, 0, 3.0 if i % 20 < 15 else 9.0, float(i))
        assert model.slowdown == 1.0


@pytest.mark.parametrize("seed", range(10))
def test_five_times_slower_and_back(seed: int) -> None:
    series = Series(seed)
    assert series.count_steps(LEARNED + 1000) == 0
    usual_ms = series.model.own(series.now).prefill_ms(4000, 8000)
    count, size = series.find_step(5.0)
    assert count is not None
    assert count <= RUN + 1
    assert size == pytest.approx(5.0, rel=0.25)
    assert series.model.own(series.now).prefill_ms(4000, 8000) == pytest.approx(5 * usual_ms, rel=0.35), "priced"
    for _ in range(30):
        series.observe(1.0)
    assert series.observe(1.0) == pytest.approx(1.0, abs=0.3)
    assert series.model.own(series.now).prefill_ms(4000, 8000) == pytest.approx(usual_ms, rel=0.35)


def test_a_slow_engine_without_requests_is_tried_again_after_a_while() -> None:
    model = learned(5, 5, 5)
    assert priced(model, 32.0 + STALE_S) == pytest.approx(5.0, rel=0.1)
    assert priced(model, 33.0 + STALE_S) == pytest.approx(1.0, rel=0.2)
    assert model.slowdown == pytest.approx(5.0, rel=0.1), "as last measured"
    again = 40.0 + STALE_S
    model.observe_prefill(1000, 0, 5 * USUAL_MS, again)
    assert priced(model, again) > 2, "one request is enough, as the coefficients are in doubt"
    assert model.slowdown > 2
    model.observe_prefill(1000, 0, USUAL_MS, again + 2 * STALE_S)
    assert model.slowdown == 1.0


def test_a_slowdown_passes_to_other_routers() -> None:
    model, other = learned(5, 5, 5), LatencyModel(SpeedPrior())
    other.restore([fit.save(32.0) for fit in model.fits], 32.0)
    assert priced(other) == priced(model)
    other.observe_prefill(1000, 0, 5 * USUAL_MS, 33.0)
    assert other.slowdown == pytest.approx(5.0, rel=0.1), "known with the first request here"


def test_a_new_process_of_the_engine_has_its_usual_speed() -> None:
    target = a_target()
    for i in range(40):
        target.latency_model.observe_prefill(1000, 0, USUAL_MS * (1 if i < 30 else 5), float(i))
    assert target.latency_model.slowdown > 4
    target.reset()
    assert target.latency_model.slowdown == 1.0
    assert priced(target.latency_model) == pytest.approx(1.0, rel=0.2)
