"""What is called a difference between two routers, and what noise."""

from __future__ import annotations

import pytest

from tests.headtohead.comparison import MIN_PAIRS, by_router, compare, compare_figure
from tests.headtohead.contenders import OURS
from tests.headtohead.control import Control
from tests.headtohead.loads import LOADS
from tests.headtohead.match import Match, MatchFigures, decode_matches, encode_matches
from tests.headtohead.page import render

OURS_S = [1.0, 2.0, 4.0, 3.0, 1.5, 2.5]
LOAD = LOADS[0].name


def match(router: str, seed: int, ttft_s: float | None) -> Match:
    figures = MatchFigures(10.0, ttft_s, ttft_s, ttft_s, 0.5, 0, 8.0, 100.0, 0.3, 0.001, 0.4)
    return Match(router, LOAD, seed, "2026-11-30 12:00+00:00", 80.0, None, figures)


def test_a_difference_that_every_seed_shows_is_none_of_noise() -> None:
    ratio = compare([1.2 * value for value in OURS_S], OURS_S)
    assert ratio is not None
    assert ratio.mean == pytest.approx(1.2)
    assert ratio.is_equal is False


def test_a_difference_that_half_of_the_seeds_contradict_is_noise() -> None:
    theirs = [value * (1.3 if number % 2 else 1 / 1.25) for number, value in enumerate(OURS_S)]
    ratio = compare(theirs, OURS_S)
    assert ratio is not None
    assert ratio.is_equal is True


def test_few_seeds_say_nothing_of_noise_and_none_nothing_at_all() -> None:
    few = compare([2.0] * (MIN_PAIRS - 1), [1.0] * (MIN_PAIRS - 1))
    assert few is not None
    assert few.mean == pytest.approx(2.0)
    assert few.is_equal is None
    assert compare([], []) is None


def test_routers_are_compared_over_the_seeds_that_both_played() -> None:
    ours = {seed: match(OURS, seed, 0.1) for seed in range(6)}
    theirs = {seed: match("other", seed, None if seed == 5 else 0.2) for seed in range(1, 9)}
    ratio = compare_figure(theirs, ours, "ttft_p90_s")
    assert ratio is not None
    assert ratio.mean == pytest.approx(2.0)
    assert ratio.is_equal is False


def test_the_page_has_a_row_for_each_router_that_played() -> None:
    theirs, tuned = "smg `cache_aware`", "vllm-router `kv_aware`, sticky"
    matches = [match(OURS, seed, 0.1) for seed in range(5)] + [match(theirs, seed, 0.125) for seed in range(5)]
    matches += [match(tuned, seed, 0.4) for seed in range(5)]
    assert set(decode_matches(encode_matches(matches))) == set(matches)
    left_out = Match("nginx round robin", LOAD, 1, "", 0.0, "InstallFailed: nginx is not installed", None)
    page = render(
        LOADS, [*matches, left_out], [Control(theirs, 20.0, None, 8, 8, 1), Control(OURS, 20.0, None, 8, 7, 1)]
    )
    assert f"| {theirs} | 8 of 8 | 1 of 8 | exactly |" in page
    assert f"| {OURS} | 7 of 8 | 1 of 8 | not |" in page
    assert f"| {theirs} | 10.0 (=) | 0.12 (+25%) | 0.12 (+25%) | 0.12 (+25%) | 50% | 0 | 8.0 | 100 |" in page
    assert "nginx" not in page
    assert f"| {LOAD} | 5 | 0.1 | 0.12 (+25%) |" in page
    assert f"| {LOAD} | 5 | 0.1 | 0.4 (4 times) |" in page
    assert by_router(matches, LOAD).keys() == {OURS, theirs, tuned}
