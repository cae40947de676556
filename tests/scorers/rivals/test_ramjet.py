"""Worked arithmetic: affinity blocks of 16 tokens, so that a held token count of 16 * n is n blocks."""

from typing import Any

import pytest

from scorers.contract import Row
from scorers.rivals.ramjet import Ramjet
from tests.suites.views import a_load, a_row, a_view, an_overlap

SMALL = Ramjet(affinity_block_tokens=16)


def row(name: str, blocks: int, requests: int = 0, prefill_tokens: int = 0) -> Row:
    return a_row(name, an_overlap(16 * blocks), a_load(requests=requests, prefill_tokens=prefill_tokens))


def score(*rows: Row, scorer: Ramjet = SMALL, **known: Any) -> list[float]:
    return list(scorer.score(a_view(*rows, prompt_tokens=10_000, **known)))


def test_affinity_is_what_the_warmest_holds_less_what_a_target_trails() -> None:
    # the warmest holds 20: affinity 20 - 0, 20 - 5, 20 - 20; no load
    costs = score(row("a", 20), row("b", 15), row("c", 0))
    assert costs == pytest.approx([-20, -15, 0], abs=1e-6)


def test_a_cap_lets_a_large_difference_in_load_win_over_any_prefix() -> None:
    # 40 blocks count 32: 4 * 7 - 32 = -4 stays below the idle target's 0, 4 * 9 - 32 = 4 does not
    assert score(row("idle", 0), row("warm", 40, requests=7)) == pytest.approx([0, -4], abs=1e-6)
    assert score(row("idle", 0), row("warm", 40, requests=9)) == pytest.approx([0, 4], abs=1e-6)


def test_differences_near_the_warmest_survive_the_cap() -> None:
    # 100 and 90 blocks: 32 - 0 and 32 - 10;  4 * 2 - 32 = -24 and 4 * 1 - 22 = -18
    assert score(row("a", 90, requests=1), row("b", 100, requests=2)) == pytest.approx([-18, -24], abs=1e-6)


def test_queued_prefill_is_load_in_units_of_8192_tokens() -> None:
    # 10 blocks, one request and two units: 4 * 3 - 10
    assert score(row("idle", 0), row("warm", 10, requests=1, prefill_tokens=16_384)) == pytest.approx([0, 2], abs=1e-6)


def test_of_equal_scores_the_longer_prefix_wins() -> None:
    # both trail by 32 or more, so their affinity is 0
    costs = score(row("far", 8), row("none", 0), row("warmest", 60, requests=30))
    assert costs[0] < costs[1] < costs[2]
    assert costs == pytest.approx([0, 0, 120 - 32], abs=1e-6)


def test_blocks_are_whole() -> None:
    # 1,023 tokens are one block of 512
    costs = score(a_row("a", an_overlap(1023)), a_row("b", an_overlap(0)), scorer=Ramjet())
    assert costs == pytest.approx([-1, 0], abs=1e-6)


def test_an_unknown_overlap_is_the_mean_of_the_others() -> None:
    # 20 and 0: 10 for the unknown one, which trails by 10
    costs = score(row("a", 20), a_row("b"), row("c", 0))
    assert costs == pytest.approx([-20, -10, 0], abs=1e-6)


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"load_unit_tokens: found 0, wanted at least 1"):
        Ramjet(load_unit_tokens=0)
