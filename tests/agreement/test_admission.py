"""The row `admission`: its lines from given figures. Whether admission control helps is measured by the row itself."""

from __future__ import annotations

import pytest

from router.lab.simulator.outcome import SimulationFigures, SimulationOutcome, compute_figures
from tests.agreement.admission import lines

NOBODY = compute_figures(SimulationOutcome(1))


def at(requests_per_s: float, prompt_tokens: float = 50_000) -> SimulationFigures:
    return NOBODY._replace(
        requests_per_s=requests_per_s,
        input_tokens_per_s=requests_per_s * prompt_tokens,
        waited_p50_s=97.0,
        waited_p90_s=477.0,
    )


WITHOUT = {16: at(8.0), 20: at(9.0), 21: at(8.5), 32: at(3.0)}


def test_before_the_edge_admission_may_cost_four_percent() -> None:
    (line,) = lines("plain, 16 per instance", 16, WITHOUT, at(7.7))
    assert line.ours == pytest.approx(0.9625)  # 7.7 / 8
    assert line.within
    (line,) = lines("plain, 16 per instance", 16, WITHOUT, at(7.6))
    assert not line.within  # 0.95


def test_past_it_a_miss_says_what_the_fleet_serves_at_best() -> None:
    faster, share, *_ = lines("plain, 32 per instance", 32, WITHOUT, at(8.1))
    assert faster.ours == pytest.approx(2.7)  # 8.1 / 3
    assert not faster.within
    assert faster.why == "plain, 32 per instance: the best without admission, at 20, is 3.00 times as fast"  # 9 / 3
    assert share.ours == pytest.approx(0.9)  # 8.1 / 9
    assert share.within


def test_a_rule_far_from_what_the_fleet_can_serve_is_a_miss_of_its_own() -> None:
    _, share, *_ = lines("plain, 32 per instance", 32, WITHOUT, at(7.2))
    assert share.ours == pytest.approx(0.8)  # 7.2 / 9
    assert not share.within


def test_older_contexts_inside_are_not_held_against_the_rule() -> None:
    faster, share, *_ = lines("plain, 32 per instance", 32, WITHOUT, at(6.0, prompt_tokens=75_000))
    assert faster.ours == pytest.approx(2.0)  # 6 / 3
    assert share.ours == pytest.approx(1.0)  # 6 x 75,000 = 9 x 50,000
    assert share.within


def test_the_waiting_is_reported_without_a_bar() -> None:
    *_, half, most = lines("plain, 32 per instance", 32, WITHOUT, at(8.1))
    assert (half.ours, half.within) == (97.0, None)
    assert (most.ours, most.within) == (477.0, None)


def test_a_fleet_that_served_nothing_gives_no_ratio_and_no_reason() -> None:
    faster, *_ = lines("plain, 32 per instance", 32, {**WITHOUT, 32: at(0.0)}, at(8.1))
    assert faster.ours is None
    assert faster.why == ""
