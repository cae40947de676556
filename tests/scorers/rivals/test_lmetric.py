"""Worked arithmetic: blocks have 16 tokens, the prompt 1,600 (100 blocks) unless something else is said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import PoolHit, Row
from scorers.rivals.lmetric import Lmetric
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views


def score(*rows: Row, scorer: Lmetric | None = None, **known: Any) -> list[float]:
    return list((scorer or Lmetric()).score(a_view(*rows, **({"prompt_tokens": 1600} | known))))


def test_prefill_times_blocks_in_use() -> None:
    # cold: 100 * (100 + 1).  warm and busy: (320 + 1600 - 800) / 16 = 70, times (4800 + 1600) / 16 + 1 = 401
    busy = a_load(prefill_tokens=320, context_tokens=4800)
    assert score(a_row("cold", an_overlap(0)), a_row("warm", an_overlap(800), busy)) == [10_100, 28_070]


def test_a_tenth_of_the_prefill_is_worth_ten_times_the_blocks() -> None:
    # warm: (1600 - 1440) / 16 = 10 to compute; cold: 100 with 101 blocks and one; so up to 1010 blocks and one
    def chosen(context_blocks: int) -> bool:
        load = a_load(context_tokens=16 * (context_blocks - 100))
        warm, cold = score(a_row("warm", an_overlap(1440), load), a_row("cold", an_overlap(0)))
        return warm < cold

    assert chosen(1008)  # 10 * 1009 < 100 * 101
    assert not chosen(1009)  # 10 * 1010 = 100 * 101


def test_slower_tiers_and_the_pool_spare_their_share() -> None:
    # 1600 - 800 - 0.75 * 160 - 0.25 * 160 - 0.5 * (1440 - 800) = 320 -> 20 blocks; * 101
    a = a_row("a", an_overlap(800, cpu=960, disk=1120))
    assert score(a, scorer=Lmetric(shared_cache_multiplier=0.5), pool=PoolHit(1440, 0.1)) == [20 * 101]


def test_more_credit_than_work_is_no_work_whatever_the_load() -> None:
    rows = a_row("a", an_overlap(1584)), a_row("b", an_overlap(1584), a_load(context_tokens=16_000))
    assert score(*rows) == [1 * 101, 1 * 1101]
    assert score(*rows, scorer=Lmetric(overlap_score_credit=1.5)) == [0, 0]


def test_larger_blocks_do_not_look_idle() -> None:
    rows = a_row("a", an_overlap(0)), a_row("b", an_overlap(0))._replace(block_tokens=128)
    assert score(*rows) == [10_100, 10_100]


def test_unknown_overlap_gets_the_mean_credit() -> None:
    # 800 and 0 are known: 400 spared, 75 * 101
    rows = a_row("a", an_overlap(800)), a_row("b"), a_row("c", an_overlap(0))
    assert score(*rows) == [50 * 101, 75 * 101, 100 * 101]


def test_a_prompt_of_unknown_length_is_the_longest_run() -> None:
    # a's 800: nothing left, and 50 * 51
    assert score(a_row("a", an_overlap(800)), a_row("b", an_overlap(0)), prompt_tokens=None) == [0, 50 * 51]


def test_no_weight_is_negative() -> None:
    with pytest.raises(ValueError, match=r"disk_cache_hit_weight: found -1\.0, wanted at least 0"):
        Lmetric(disk_cache_hit_weight=-1.0)


@pytest.mark.parametrize(
    "scorer",
    [Lmetric(), Lmetric(overlap_score_credit=2.0, shared_cache_multiplier=0.5), Lmetric(overlap_score_credit=0.0)],
    ids=["defaults", "shared", "load only"],
)
@examples(50)
@given(st.data(), views())
def test_contract(scorer: Lmetric, data: Any, view: Any) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
