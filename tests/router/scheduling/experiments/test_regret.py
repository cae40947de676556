"""Differences and their sums, worked by hand.

`a_speed`: 5 ms + (125 us * new + 1 ns * new * (context + new / 2)) / 1000.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.scheduling.experiments import regret
from router.scheduling.experiments.regret import SAME, RegretSummary, compute_regret
from scorers.contract import View
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

WARM = a_row("a", an_overlap(800), a_load(queued_ms=100.0))
COLD = a_row("b", an_overlap(0, expected=200))
SILENT = a_row("c", None)
VIEW = a_view(WARM, COLD, SILENT, prompt_tokens=1000)


def test_the_other_choice_minus_the_one_that_was_made() -> None:
    # warm: 100 queued + 5 + 125 * 200 / 1000 + 200 * (800 + 100) * 1e-6 = 100 + 5 + 25 + 0.18 = 130.18
    # cold:   0 queued + 5 + 125 * 800 / 1000 + 800 * (200 + 400) * 1e-6 =       5 + 100 + 0.48 = 105.48
    found = compute_regret(VIEW, WARM, COLD)
    assert found.ttft_ms == pytest.approx(105.48 - 130.18)
    assert found.overlap_tokens == 200 - 800


def test_an_unknown_overlap_has_no_difference() -> None:
    # c is taken to hold what a does, 800: 5 + 25 + 0.18 = 30.18 ms
    found = compute_regret(VIEW, WARM, SILENT)
    assert found.ttft_ms == pytest.approx(30.18 - 130.18)
    assert found.overlap_tokens is None


def test_the_same_target_is_no_difference() -> None:
    assert compute_regret(VIEW, SILENT, SILENT) == SAME


@given(views(), st.data())
def test_the_way_back_is_the_opposite(view: View, data: st.DataObject) -> None:
    one, other = (data.draw(st.sampled_from(view.rows)) for _ in range(2))
    there, back = compute_regret(view, one, other), compute_regret(view, other, one)
    assert there.ttft_ms == -back.ttft_ms
    assert (there.overlap_tokens is None) == (back.overlap_tokens is None)
    if there.overlap_tokens is not None and back.overlap_tokens is not None:
        assert there.overlap_tokens == -back.overlap_tokens


def test_a_summary_adds_up() -> None:
    comparison = RegretSummary()
    comparison.add(VIEW, WARM, COLD)
    comparison.add(VIEW, WARM, COLD)
    comparison.add(VIEW, WARM, SILENT)
    comparison.add(VIEW, COLD, COLD)
    comparison.failed += 1
    found = comparison.summary()
    assert (found.decisions, found.agreed, found.agreement, found.failed) == (4, 1, 0.25, 1)
    # (-24.70 - 24.70 - 100.00 + 0) / 4 = -37.35 ms
    assert found.ttft_ms == pytest.approx(-37.35)
    # known of three: (-600 - 600 + 0) / 3 = -400 tokens
    assert found.overlap_tokens == pytest.approx(-400)
    assert found.moves == {("a/0", "b/0"): 2, ("a/0", "c/0"): 1}
    # 4 requests, 3 targets, mean 4/3. Made: a 3 -> 2.25. Other: b 3 -> 2.25
    assert (found.uneven_made, found.uneven_other) == (pytest.approx(2.25), pytest.approx(2.25))


def test_everything_on_one_of_three_is_three_times_as_uneven_as_can_be() -> None:
    comparison = RegretSummary()
    for _ in range(5):
        comparison.add(VIEW, WARM, WARM)
    assert comparison.summary().uneven_other == pytest.approx(3)


def test_targets_of_a_large_fleet_that_no_view_shows_were_offered_too() -> None:
    comparison = RegretSummary()
    comparison.add(VIEW._replace(others=97), WARM, WARM)
    comparison.add(VIEW._replace(others=95), WARM, COLD)
    found = comparison.summary()  # 2 requests over 100 targets: 0.02 each; made: 2 on one, other: 1
    assert (found.uneven_made, found.uneven_other) == (pytest.approx(100), pytest.approx(50))


def test_pairs_of_targets_that_come_and_go_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regret, "MOVES", 10)
    comparison = RegretSummary()
    for number in range(30):
        comparison.add(VIEW, WARM, COLD._replace(target=f"pod-{number}/0"))
    found = comparison.summary()
    assert len(found.moves) == 10
    assert (found.decisions, found.agreed) == (30, 0)


def test_without_a_decision_nothing_is_known() -> None:
    found = RegretSummary().summary()
    assert (found.decisions, found.agreed, found.failed, found.moves) == (0, 0, 0, {})
    assert found.agreement is None
    assert (found.ttft_ms, found.overlap_tokens, found.uneven_made, found.uneven_other) == (None,) * 4
