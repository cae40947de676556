"""What the comparison with the real stack computes by itself; the comparison: `tests/stack/test_agreement.py`."""

from __future__ import annotations

from itertools import pairwise

import pytest

from router.config.reader import load_policies
from router.lab.rng import Rng
from tests.agreement.stack import (
    FULL,
    POLICY,
    REDUCED,
    SPEEDS,
    Row,
    Shares,
    Size,
    StandardErrors,
    _settings,
    simulated,
    speed_phases,
    table,
)
from tests.bench.real_stack.agents import default_arms

FEW = SPEEDS[::5]


def test_apart_is_the_largest_of_the_three_differences() -> None:
    """40 + 30 + 30 against 45 + 20 + 35: pool differs most."""
    assert Shares(0.40, 0.30).apart(Shares(0.45, 0.20)) == pytest.approx(0.10)
    assert Shares(0.40, 0.30).apart(Shares(0.42, 0.33)) == pytest.approx(0.05)  # of what is computed


def test_a_mean_is_of_each_source() -> None:
    assert Shares.mean([Shares(0.2, 0.5), Shares(0.4, 0.1)]) == pytest.approx((0.3, 0.3))


def test_a_row_shows_both_sides_and_how_far_they_are_apart() -> None:
    row = Row("with pool", Shares(0.5, 0.25), Shares(0.5, 0.3), 0.02, StandardErrors(0.0, 0.0, 0.0))
    shown = table([row]).splitlines()[-1]
    assert shown.split() == ["with", "pool", "50.0%", "25.0%", "25.0%", "50.0%", "30.0%", "20.0%", "5.0%", "2.0%"]


@pytest.mark.parametrize("size", [FULL, REDUCED])
def test_simulated_arms_differ_as_the_real_ones_must(size: Size) -> None:
    workload, policies = size.workload(1), load_policies(_settings())
    alone, pooled, aware = (Shares.mean(simulated(workload, arm, policies, FEW)) for arm in default_arms(POLICY))
    assert alone.pool == 0.0
    assert pooled.computed < alone.computed  # the pool has what the other engine computed
    assert aware.local > pooled.local  # and seeing caches, less of it must be fetched


def test_simulated_runs_differ_by_speed_and_by_nothing_else() -> None:
    workload, policies, arm = REDUCED.workload(1), load_policies(_settings()), default_arms(POLICY)[0]
    runs = simulated(workload, arm, policies, FEW)
    assert len(runs) == len(FEW)
    assert len(set(runs)) > 1
    assert runs == simulated(workload, arm, policies, FEW)


def test_the_error_of_a_mean_falls_with_the_number_of_real_runs() -> None:
    """Deviations of 4 and 2 points: a variance of 10, of four real runs' mean 2.5; computed is constant."""
    far, near = [Shares(0.40, 0.40), Shares(0.48, 0.32)], [Shares(0.42, 0.38), Shares(0.46, 0.34)]
    assert StandardErrors.of([far, near, far, near]) == pytest.approx((2.5e-4**0.5, 2.5e-4**0.5, 0.0))


def test_phases_of_an_instance_follow_each_other() -> None:
    phases = [one for one in speed_phases(Rng(1), 2) if one.instance == 1]
    assert phases[0].at_s == 0.0
    assert all(one.until_s < following.at_s < one.until_s + 1e-5 for one, following in pairwise(phases))
    factors = sorted(one.factor for one in phases)
    assert factors[len(factors) // 2] == pytest.approx(1.0, rel=0.15)
