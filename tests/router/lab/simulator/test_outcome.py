import math

import pytest

from router.lab.simulator.outcome import RequestEnd, ServiceLimits, SimulationOutcome, compute_figures, quantile


def ended(outcome: SimulationOutcome, at_s: float, ttft_s: float, duration_s: float, *, instance: int = 0, local: int =
0,
          pool: int = 0, waited_s: float = 0.0, output: int = 11, end: RequestEnd = RequestEnd.OK) -> None:  # fmt: skip
    outcome.arrived_s.append(at_s)
    outcome.waited_s.append(waited_s)
    outcome.ttft_s.append(ttft_s)
    outcome.duration_s.append(duration_s)
    outcome.session.append(0)
    outcome.instance.append(instance)
    outcome.prompt_tokens.append(1000)
    outcome.local_tokens.append(local)
    outcome.host_tokens.append(0)
    outcome.pool_tokens.append(pool)
    outcome.output_tokens.append(output)
    outcome.end.append(end)


def test_figures_of_a_window() -> None:
    outcome = SimulationOutcome(2)
    ended(outcome, 1.0, 9.0, 9.9)  # before the window, but it ends in it
    ended(outcome, 10.0, 1.0, 2.0, local=500)
    ended(outcome, 12.0, 3.0, 5.0, instance=1, pool=800, waited_s=2.5)
    ended(outcome, 19.0, 0.5, 4.0)  # ends after the window
    ended(outcome, 15.0, math.nan, 0.0, instance=-1, end=RequestEnd.SHED)
    ended(outcome, 16.0, math.nan, 0.0, instance=-1, end=RequestEnd.FAILED)
    found = compute_figures(outcome, ServiceLimits(ttft_s=2.0, tpot_s=0.15), since_s=10.0, until_s=20.0)
    assert (found.requests, found.shed, found.failed) == (3, 1, 1)
    assert found.requests_per_s == pytest.approx(0.3)  # three ended in ten seconds
    assert found.output_tokens_per_s == pytest.approx(3.3)
    assert found.ttft_mean_s == pytest.approx(1.5)
    assert (found.ttft_p50_s, found.ttft_p99_s) == (1.0, 3.0)
    assert found.tpot_mean_s == pytest.approx((0.1 + 0.2 + 0.35) / 3)
    assert found.local_share == pytest.approx(500 / 3000)
    assert found.pool_share == pytest.approx(800 / 3000)
    assert found.hit_share == pytest.approx(1300 / 3000)
    assert found.imbalance == pytest.approx(1500 / 850)  # 500 + 1,000 on one, 200 on the other
    assert found.good_per_s == pytest.approx(0.1)  # the second only: one was late, one streamed too slowly
    assert found.waited_p50_s == 2.5


def test_of_nobody_nothing_is_known() -> None:
    found = compute_figures(SimulationOutcome(1))
    assert found.requests == 0
    assert found.ttft_p90_s is None
    assert found.hit_share is None
    assert found.imbalance is None
    assert found.requests_per_s == 0


def test_a_quantile_is_a_value_that_was_there() -> None:
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert quantile([1.0], 0.99) == 1.0
    assert quantile([], 0.5) is None
