"""Loads that rise and fall, and what is counted of a run."""

from __future__ import annotations

import pytest

from router.lab.rng import Rng
from router.lab.simulator.outcome import FleetSize, RequestEnd, SimulationOutcome
from tests.agreement.autoscaling import count_instance_hours, count_missed
from tests.agreement.autoscaling_loads import bursts, diurnal, draw_starts


def test_a_day_has_five_times_as_many_sessions_at_its_height() -> None:
    starts_s = [session.start_s for session in diurnal(20_000.0, 0.5, seed=1).sessions]
    assert starts_s == sorted(starts_s)
    height = sum(9_000 <= at_s < 11_000 for at_s in starts_s)
    ends = sum(at_s < 1_000 or at_s >= 19_000 for at_s in starts_s)
    assert height == pytest.approx(0.5 * 2_000, rel=0.1)
    assert ends == pytest.approx(0.1 * 2_000, rel=0.2)
    assert diurnal(2_000.0, 0.5, seed=1) == diurnal(2_000.0, 0.5, seed=1) != diurnal(2_000.0, 0.5, seed=2)


def test_a_thinned_process_has_the_rate_that_was_asked_for() -> None:
    starts_s = draw_starts(10_000.0, 2.0, lambda at_s: 0.1 if at_s < 5_000 else 1.0, Rng(3))
    before = sum(at_s < 5_000 for at_s in starts_s)
    assert before == pytest.approx(1_000, rel=0.1)
    assert len(starts_s) - before == pytest.approx(10_000, rel=0.05)


def test_bursts_have_five_times_the_rate_of_the_calm_between_them() -> None:
    starts_s = [session.start_s for session in bursts(4_000.0, 6.0, 500.0, seed=1).sessions]
    calm = sum(at_s % 1_000 < 500 for at_s in starts_s)
    assert (len(starts_s) - calm) / calm == pytest.approx(5.0, rel=0.1)


def test_instance_hours_and_misses() -> None:
    outcome = SimulationOutcome(3)
    outcome.took_s = 7200.0
    assert count_instance_hours(outcome) == 6.0
    outcome.sizes += [FleetSize(0.0, 1, 1), FleetSize(1800.0, 3, 1), FleetSize(5400.0, 2, 2)]
    assert count_instance_hours(outcome) == 0.5 + 3.0 + 1.0
    outcome.end.extend([RequestEnd.OK, RequestEnd.OK, RequestEnd.FAILED])
    outcome.ttft_s.extend([2.0, 2.1, float("nan")])
    assert count_missed(outcome) == 2
