"""Worked arithmetic: blocks of 16 tokens, a prompt of 160 (10 blocks)."""

from typing import Any

import pytest

from scorers.contract import PoolHit, Row, View
from scorers.rivals.jsew import Jsew
from tests.suites.views import a_load, a_row, a_view, an_overlap

PLAIN = {"decode_footprint_weight": 1.0, "decode_work_scale": 0.0, "decode_load_exponent": 1.0,
         "decode_share_exponent": 0.0}  # fmt: skip


def row(name: str, held: int = 0, blocks: int = 0, requests: int = 0, queued: int = 0) -> Row:
    load = a_load(requests=requests, prefill_tokens=queued, context_tokens=16 * blocks)
    return a_row(name, an_overlap(held), load)


def view(*rows: Row, **known: Any) -> View:
    return a_view(*rows, **({"prompt_tokens": 160} | known))


def test_without_its_own_terms_it_is_dynamos_cost() -> None:
    # (32 + 160 - 80) / 16 + 20 + 10; 160 / 16 + 0 + 10
    rows = row("a", held=80, blocks=20, requests=2, queued=32), row("b")
    assert Jsew(**PLAIN).score(view(*rows)) == [37, 20]


def test_slower_tiers_and_the_pool_spare_their_share() -> None:
    # 160 - 32 - 0.75 * 32 - 0.25 * 32 - 0.5 * (128 - 32) = 48 -> 3 blocks, and 10 in use
    rows = (a_row("a", an_overlap(32, cpu=64, disk=96)),)
    scorer = Jsew(**PLAIN, shared_cache_multiplier=0.5)
    assert scorer.score(view(*rows, pool=PoolHit(128, 0.1))) == [13]


def test_requests_undo_the_sharing_of_blocks() -> None:
    # blocks in use 30 and 10; 16 requests and none: 30 * 16 ^ 0.25 = 60, 10; prefill 10 each
    scorer = Jsew(**(PLAIN | {"decode_share_exponent": 0.25}))
    rows = row("a", blocks=20, requests=16), row("b")
    assert scorer.score(view(*rows)) == pytest.approx([70, 20])


def test_a_loaded_target_is_charged_more_than_in_proportion() -> None:
    # 90 and 10 in use, mean 50: 90 * (90 / 50), 10 * (10 / 50) at exponent 2; prefill 10 each
    scorer = Jsew(**(PLAIN | {"decode_load_exponent": 2.0}))
    assert scorer.score(view(row("a", blocks=80, requests=1), row("b"))) == pytest.approx([172, 12])


def test_expected_work_is_relative_to_this_prompt() -> None:
    # uncached at the longest holder: 160 - 80 = 80, half of the prompt; 20 in use: (1 + 4 * 0.5) * 20 = 60; prefill 5
    scorer = Jsew(**(PLAIN | {"decode_work_scale": 4.0}))
    assert scorer.score(view(row("a", held=80, blocks=10, requests=1)))[0] == pytest.approx(65)


def test_the_average_of_uncached_tokens_is_learned_from_choices() -> None:
    scorer = Jsew(**(PLAIN | {"decode_work_scale": 1.0, "ema_alpha": 0.25}))
    long = view(row("a"), prompt_tokens=800)
    assert scorer.score(long) == pytest.approx([50 + 2 * 50])  # 800 of 800 are expected
    scorer.picked(long, long.rows[0])
    # 0.25 * 160 + 0.75 * 800 = 640 = four prompts of 160: 10 + (1 + 4) * 10
    assert scorer.score(view(row("a"))) == pytest.approx([60])


def test_the_defaults_are_dynamos() -> None:
    # one target, so the mean is its own: 1.526 + 17.601 * 1, times 10 blocks; and 10 of prefill
    assert Jsew().score(view(row("a"))) == pytest.approx([10 + 10 * 19.127])


def test_an_empty_prompt_costs_nothing_anywhere() -> None:
    assert Jsew().score(view(row("a"), row("b"), prompt_tokens=0)) == [0, 0]


def test_bounds() -> None:
    with pytest.raises(ValueError, match=r"ema_alpha: found 2\.0, wanted a share from 0 to 1"):
        Jsew(ema_alpha=2.0)
    with pytest.raises(ValueError, match=r"prefill_load_scale: found -1\.0, wanted at least 0"):
        Jsew(prefill_load_scale=-1.0)
