"""Worked arithmetic: attention is off (`c_att` 0) and one token costs 1, unless something else is said."""

from typing import Any

import pytest

from scorers.contract import Outcome, Row, View
from scorers.rivals.smetric import ENOUGH, SAMPLES, ObservedRate, Smetric
from tests.suites.views import a_load, a_row, a_view, an_overlap


def linear(**known: Any) -> Smetric:
    """1,000 units a second, to be served within 1 s + nothing per token."""
    given = {"c_att": 0.0, "prefill_rate": 1000.0, "ttft_base_s": 1.0, "ttft_s_per_1k_tokens": 0.0}
    return Smetric(**(given | known))


def row(name: str, held: int = 0, queued: int = 0, requests: int = 1) -> Row:
    """`queued` tokens are one prompt of which nothing is cached; all requests have prompts of that length."""
    load = a_load(
        requests=requests,
        prefilling=int(queued > 0),
        prefill_tokens=queued,
        context_tokens=queued * requests,
    )
    return a_row(name, an_overlap(held), load)


def view(*rows: Row, **known: Any) -> View:
    later = {"prompt_tokens": 1000, "session": "s", "last_target": "home/0"}
    return a_view(*rows, **(later | known))


def answer(ttft_ms: float | None, ok: bool = True) -> Outcome:
    return Outcome(ok, 200, ttft_ms, 5000.0, None, None, None)


def test_a_first_turn_goes_by_queue_times_requests() -> None:
    # (200 + 1000) * 2, (0 + 1000) * 3
    rows = row("home", queued=200, requests=2), row("b", requests=3)
    assert linear().score(view(*rows, last_target=None)) == [2400, 3000]
    assert linear().score(view(*rows, session=None)) == [2400, 3000]


def test_prefill_halves_go_by_the_queue_alone() -> None:
    rows = row("home", queued=200, requests=2), row("b", requests=3)
    assert linear(colocated=False).score(view(*rows, last_target=None)) == [1200, 1000]


def test_attention_makes_long_prompts_dear() -> None:
    # n 600 of 1,000: 600 + 0.001 * 600 * (1000 - 300) = 1020
    # queued: one prompt of 2,000, all new: 2000 + 0.001 * 2000 * 1000 = 4000; n 1000: 1000 + 0.001 * 1000 * 500 = 1500
    rows = row("a", held=400), row("b", queued=2000)
    assert linear(c_att=0.001).score(view(*rows, last_target=None)) == pytest.approx([1020, 5500])


def test_queued_attention_is_that_of_requests_of_mean_length() -> None:
    # two of four requests wait with 1,000 new tokens together, so 500 each of 2,000:
    # 2 * (500 + 0.001 * 500 * (2000 - 250)) = 2750; this prompt: 1000 + 0.001 * 1000 * 500 = 1500; times 4
    load = a_load(requests=4, prefilling=2, prefill_tokens=1000, context_tokens=8000)
    rows = (a_row("a", an_overlap(0), load),)
    assert linear(c_att=0.001).score(view(*rows, last_target=None)) == pytest.approx([4 * 4250])


def test_a_session_stays_with_the_longest_match_that_meets_the_objective() -> None:
    # home: 600 queued + 400 new = 1000 units in 1 s; b would be (0 + 1000) * 0
    rows = row("home", held=600, queued=600), row("b", requests=0)
    assert linear().score(view(*rows)) == [-1, 0]


def test_it_leaves_a_target_that_misses_for_one_that_meets() -> None:
    # home: 601 + 400 units are over 1 s, b's 1000 are not
    rows = row("home", held=600, queued=601), row("b", requests=2)
    assert linear().score(view(*rows)) == [1001, 2000]


def test_it_stays_if_nobody_meets() -> None:
    # b: 1 + 1000 is over 1 s, too
    rows = row("home", held=600, queued=900), row("b", queued=1, requests=2)
    assert linear().score(view(*rows)) == [-1, 2002]


def test_the_objective_grows_with_the_prompt_and_with_slack() -> None:
    # 601 + 400 = 1001 <= (0.5 + 0.6 * 1000 / 1000) * 1000
    rows = row("home", held=600, queued=601), row("b", requests=2)
    assert linear(ttft_base_s=0.5, ttft_s_per_1k_tokens=0.6).score(view(*rows))[0] == -1
    assert linear(slack=1.5).score(view(*rows))[0] == -1


def test_a_match_much_shorter_than_the_previous_prompt_was_evicted() -> None:
    scorer = linear()
    evicted = row("home", held=80), row("b")
    scorer.picked(view(*evicted, prompt_tokens=800), evicted[0])
    # a tenth of the previous 800 tokens is 80: not more than that
    assert scorer.score(view(*evicted)) == [920, 1000]
    held = row("home", held=81), row("b")
    assert scorer.score(view(*held)) == [-1, 1000]


def test_without_the_previous_prompt_this_one_is_the_measure() -> None:
    rows = row("home", held=100), row("b")
    assert linear().score(view(*rows)) == [900, 1000]
    assert linear(hit_ratio=0.05).score(view(*rows)) == [-1, 1000]


def test_of_equal_matches_the_shorter_queue() -> None:
    rows = row("a", held=600, queued=10), row("b", held=600, queued=5)
    assert linear().score(view(*rows)) == [410, -1]


def test_a_rate_is_the_90th_percentile_of_the_last_64_from_8_on() -> None:
    rate = ObservedRate()
    for per_s in range(1, ENOUGH):
        rate.observe(float(per_s))
    assert rate.per_s is None
    rate.observe(8.0)
    assert rate.per_s == 7.0  # of 1 to 8: rank 0.9 * 7 = 6.3, the 7th
    for _ in range(SAMPLES):
        rate.observe(3.0)
    assert rate.per_s == 3.0


def test_a_target_without_a_rate_meets_and_learns_from_its_answers() -> None:
    scorer = linear(prefill_rate=None)
    home, other = row("home", held=600, queued=5000), row("b")
    assert scorer.score(view(home, other))[0] == -1
    for _ in range(ENOUGH):  # 400 units in 0.8 s are 500 a second; 5,400 are over 1 s
        scorer.finished(view(home, other), home, answer(800.0))
    assert scorer.score(view(home, other))[0] == 5400
    for unusable in (answer(None), answer(800.0, ok=False)):
        scorer.finished(view(other), other, unusable)
    assert list(scorer._rates) == ["home/0"]


def test_an_unknown_overlap_matches_nothing() -> None:
    assert linear().score(view(a_row("home", load=a_load(requests=1)), row("b"))) == [1000, 1000]


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"prefill_rate: found 0\.0, wanted more than 0"):
        Smetric(prefill_rate=0.0)
    with pytest.raises(ValueError, match=r"c_att: found -1\.0, wanted at least 0"):
        Smetric(c_att=-1.0)
