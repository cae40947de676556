"""Worked arithmetic: 1 ms per uncached token, so a prompt of 1,000 tokens of which 400 are held costs 600 ms."""

from typing import Any

import pytest

from scorers.contract import Outcome, Row, View
from scorers.rivals.lbgr import DECAY, Bias, Lbgr
from tests.suites.views import a_row, a_view, an_overlap

A, B = a_row("a", an_overlap(400)), a_row("b", an_overlap(0))


def view(*rows: Row, **known: Any) -> View:
    return a_view(*(rows or (A, B)), **({"prompt_tokens": 1000, "now_s": 10.0} | known))


def outcome(duration_ms: float, ok: bool = True) -> Outcome:
    return Outcome(ok, 200 if ok else 500, 50.0, duration_ms, None, None, None)


def test_uncached_tokens_and_at_least_a_millisecond() -> None:
    full = a_row("c", an_overlap(1000))
    assert Lbgr().score(view(A, B, full)) == [600, 1000, 1]


def test_what_is_sent_there_is_queued_and_decays() -> None:
    scorer = Lbgr()
    scorer.picked(view(), A)
    assert scorer.score(view()) == [600 + 600, 1000]
    # ten times 20 ms later: 600 * (31/32)^10
    assert scorer.score(view(now_s=10.2)) == pytest.approx([600 + 600 * DECAY**10, 1000])
    assert Lbgr(alpha=0.5)._queued_ms(A, 10.0) == 0


def test_the_rest_of_it_leaves_the_queue_with_the_answer() -> None:
    scorer = Lbgr()
    scorer.picked(view(number=1), A)
    scorer.picked(view(number=2, now_s=10.1), A)
    scorer.finished(view(number=1), A, outcome(200.0, ok=False))
    # only the second one's 600, sent 0.1 s before the end of the first
    assert scorer._queued_ms(A, 10.2) == pytest.approx(600 * DECAY**5)


def test_the_bias_is_learned_from_what_answers_took_longer() -> None:
    scorer = Lbgr()
    scorer.picked(view(number=1), A)
    scorer.picked(view(number=2), A)  # finds 600 queued
    scorer.finished(view(number=2), A, outcome(2000.0))
    # 2000 - 600 - 600 = 800, of which recursive least squares believes 1e6 / (0.95 + 1e6) at once
    gain = 1e6 / (0.95 + 1e6)
    assert scorer._biases["a/0"].ms == pytest.approx(800 * gain)
    assert scorer._biases["a/0"].covariance == pytest.approx((1 - gain) * 1e6 / 0.95)
    left = scorer._queued_ms(A, 60.0)
    assert scorer.score(view(now_s=60.0)) == pytest.approx([600 + left + 800 * gain, 1000])


def test_later_observations_count_as_much_as_forgetting_leaves_room() -> None:
    # without forgetting the bias is the mean; with 0.5 the newest of many weighs a half
    exact, quick = Bias(), Bias()
    for residual in (100.0, 200.0, 600.0):
        exact, quick = exact.updated(residual, 1.0), quick.updated(residual, 0.5)
    assert exact.ms == pytest.approx(300, rel=1e-4)
    assert quick.ms == pytest.approx((100 * 0.25 + 200 * 0.5 + 600) / 1.75, rel=1e-4)


def test_a_faster_answer_than_predicted_is_a_bias_of_a_millisecond_at_least() -> None:
    scorer = Lbgr()
    scorer.picked(view(), A)
    scorer.finished(view(), A, outcome(100.0))
    assert scorer._biases["a/0"].ms == pytest.approx(1, rel=1e-4)


def test_failures_and_unknown_choices_teach_nothing() -> None:
    scorer = Lbgr()
    scorer.picked(view(), A)
    scorer.finished(view(), A, outcome(5000.0, ok=False))
    scorer.finished(view(number=9), B, outcome(5000.0))
    assert scorer._biases == {}
    assert scorer._chosen_at_ms == {}


def test_an_unknown_overlap_matches_nothing() -> None:
    assert Lbgr().score(view(a_row("c"))) == [1000]


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"forgetting: found 1\.5, wanted a share from 0 to 1"):
        Lbgr(forgetting=1.5)
    with pytest.raises(ValueError, match=r"alpha: found -1\.0, wanted at least 0"):
        Lbgr(alpha=-1.0)
