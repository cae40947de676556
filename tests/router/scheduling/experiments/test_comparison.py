"""Two arms held against each other: directions, margins, and when the guard must act."""

from __future__ import annotations

from random import Random

import pytest

from router.config.sections.experiment import GuardConfig, Metric
from router.scheduling.experiments.comparison import METRICS, ArmComparison, EvidenceBars, compute_bars

BARS = EvidenceBars(200.0, 2000.0)  # of two arms at alpha 0.01


def a_guard(metric: Metric = "error_rate", worse_by: float = 0.2, min_units: int = 10) -> GuardConfig:
    return GuardConfig(metric=metric, worse_by=worse_by, min_units=min_units)


def compared(guard: GuardConfig, on_arm: float, on_first: float, units: int = 2000, seed: int = 1) -> ArmComparison:
    """All metrics' values are coins: of chance `on_arm` on the arm, `on_first` on the first."""
    comparison, dice = ArmComparison(0.5, guard, BARS), Random(seed)
    for _ in range(units):
        drawn = dice.random() < 0.5
        value = float(dice.random() < (on_arm if drawn else on_first))
        comparison.observe(drawn, (value,) * len(METRICS), value)
    return comparison


def verdicts(comparison: ArmComparison) -> dict[Metric, str]:
    return {metric: race.verdict for metric, race in zip(METRICS, comparison.metrics, strict=True)}


def test_what_alpha_is_divided_by() -> None:
    # half of it for the guard, half for five metrics in two directions
    assert compute_bars(0.01, 2) == (200.0, 2000.0)
    assert compute_bars(0.05, 4) == (120.0, 1200.0)
    for arms in (2, 4):
        guard, verdict = compute_bars(0.01, arms)
        assert (arms - 1) * (1 / guard + 10 / verdict) == pytest.approx(0.01)


def test_higher_is_worse_but_for_hits() -> None:
    assert verdicts(compared(a_guard(), 0.5, 0.2)) == {
        "ttft_p50": "worse", "ttft_p90": "worse", "duration_p90": "worse", "hit_share": "better", "error_rate": "worse",
    }  # fmt: skip
    assert verdicts(compared(a_guard(), 0.2, 0.5)) == {
        "ttft_p50": "better", "ttft_p90": "better", "duration_p90": "better", "hit_share": "worse",
        "error_rate": "better",
    }  # fmt: skip


def test_equal_arms_get_no_verdict() -> None:
    assert set(verdicts(compared(a_guard(), 0.3, 0.3)).values()) == {"not yet known"}


@pytest.mark.parametrize(
    ("metric", "on_arm", "on_first", "alarmed"),
    [
        ("error_rate", 0.45, 0.2, True),
        ("error_rate", 0.22, 0.2, False),  # within the fifth that it may be worse by
        ("error_rate", 0.1, 0.3, False),
        ("hit_share", 0.5, 0.9, True),
        ("hit_share", 0.76, 0.9, False),  # 0.9 / 1.2 = 0.75
        ("hit_share", 0.9, 0.5, False),
        ("ttft_p90", 0.3, 0.1, True),
        ("ttft_p90", 0.1, 0.3, False),
    ],
)
def test_the_guard_allows_what_it_was_told_to(metric: Metric, on_arm: float, on_first: float, alarmed: bool) -> None:
    assert compared(a_guard(metric), on_arm, on_first).guard_tripped is alarmed


def test_few_units_are_not_judged() -> None:
    comparison = compared(a_guard(min_units=500), 0.9, 0.1, units=500)
    assert comparison.units < 500
    assert comparison.guard_evidence.value > BARS.guard
    assert not comparison.guard_tripped
    assert set(verdicts(comparison).values()) == {"not yet known"}


def test_a_verdict_turns_when_the_opposite_becomes_clearer() -> None:
    comparison, dice = compared(a_guard(), 0.2, 0.5, units=600), Random(2)
    assert verdicts(comparison)["error_rate"] == "better"
    for _ in range(2000):
        drawn = dice.random() < 0.5
        value = float(dice.random() < (0.8 if drawn else 0.3))
        comparison.observe(drawn, (value,) * len(METRICS), value)
    assert verdicts(comparison)["error_rate"] == "worse"


def test_what_a_unit_does_not_tell_is_not_counted() -> None:
    comparison = ArmComparison(0.5, a_guard(), BARS)
    comparison.observe(True, (None, None, None, None, 0.0), None)
    assert [race.higher.units for race in comparison.metrics] == [0, 0, 0, 0, 1]
    assert comparison.guard_evidence.units == 0
    assert comparison.units == 1


def test_an_assignment_that_is_not_chance_is_noticed() -> None:
    fair, unfair = ArmComparison(0.5, a_guard(), BARS), ArmComparison(0.5, a_guard(), BARS)
    for i in range(300):
        fair.observe(i % 2 == 0, (None,) * len(METRICS), None)
        unfair.observe(i % 3 == 0, (None,) * len(METRICS), None)
    assert not fair.is_lopsided
    assert unfair.is_lopsided
