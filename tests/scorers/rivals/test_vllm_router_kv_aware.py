"""Worked arithmetic: blocks have 16 tokens, the prompt 1,600 (100 blocks) unless something else is said."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import Overlap, PoolHit, Row
from scorers.rivals.vllm_router_kv_aware import VllmRouterKvAware
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, overlaps, views

OF_ISSUE = VllmRouterKvAware(kv_in_use_weight=1.0)


def score(*rows: Row, scorer: VllmRouterKvAware = OF_ISSUE, **known: Any) -> list[float]:
    return list(scorer.score(a_view(*rows, **({"prompt_tokens": 1600} | known))))


def test_prefill_ahead_less_what_is_held_plus_decode() -> None:
    # cold: 100 + 100.  warm and busy: (320 + 1600 - 800) / 16 + (4800 + 1600) / 16 = 70 + 400
    busy = a_load(prefill_tokens=320, context_tokens=4800)
    rows = a_row("cold", an_overlap(0)), a_row("warm", an_overlap(800), busy)
    assert score(*rows) == [200, 470]
    assert score(*rows, scorer=VllmRouterKvAware()) == [100, 70], "as released"


def test_every_place_has_its_worth() -> None:
    # GPU 400, host memory to 800, pool to 1200, disk to 1600:
    # 1600 - 400 - 0.8 * 400 - 0.6 * 400 - 0.3 * 400 = 520 -> 32.5
    a = a_row("a", an_overlap(400, cpu=800, disk=1600))
    assert score(a, pool=PoolHit(1200, 0.1)) == [pytest.approx(132.5)]


def test_the_pool_does_not_pay_again_for_what_host_memory_has() -> None:
    # 1600 - 400 - 0.8 * 400 = 880 -> 55, whether the pool ends below host memory or not at all
    a = a_row("a", an_overlap(400, cpu=800))
    assert score(a) == score(a, pool=PoolHit(800, 0.1)) == [155]
    # disk below the pool pays nothing: 1600 - 0.6 * 800 = 1120 -> 70
    assert score(a_row("a", an_overlap(0, disk=640)), pool=PoolHit(800, 0.1)) == [170]


def test_what_was_just_sent_counts_as_held() -> None:
    assert score(a_row("a", an_overlap(0, expected=800))) == [150]


def test_scale_and_request_weight() -> None:
    # 3 * 50 + 100 + 2 * 7
    scorer = replace(OF_ISSUE, prefill_load_scale=3.0, decode_active_request_weight=2.0)
    assert score(a_row("a", an_overlap(800), a_load(requests=7)), scorer=scorer) == [264]


def test_less_credit_than_a_whole_block() -> None:
    # 1600 - 0.5 * 800 = 1200 -> 75
    assert score(a_row("a", an_overlap(800)), scorer=replace(OF_ISSUE, overlap_credit=0.5)) == [175]


def test_credit_ends_at_nothing_to_compute() -> None:
    assert score(a_row("a", an_overlap(1600)), scorer=replace(OF_ISSUE, overlap_credit=2.0)) == [100]


def test_larger_blocks_do_not_look_idle() -> None:
    rows = a_row("a", an_overlap(0)), a_row("b", an_overlap(0))._replace(block_tokens=128)
    assert score(*rows) == [200, 200]


def test_unknown_overlap_gets_the_mean_credit() -> None:
    # 800 and 0 are known: 400 spared
    assert score(a_row("a", an_overlap(800)), a_row("b"), a_row("c", an_overlap(0))) == [150, 175, 200]


def test_a_prompt_of_unknown_length_is_the_longest_run() -> None:
    assert score(a_row("a", an_overlap(800)), a_row("b", an_overlap(0)), prompt_tokens=None) == [50, 100]


def test_no_weight_is_negative() -> None:
    with pytest.raises(ValueError, match=r"kv_penalty_external: found -1\.0, wanted at least 0"):
        VllmRouterKvAware(kv_penalty_external=-1.0)


@given(overlaps(), st.integers(0, 100_000))
def test_no_token_is_credited_twice(overlap: Overlap, pooled: int) -> None:
    """If every place were worth as much as the GPU, what is spared would be the union of them all."""
    alike = replace(OF_ISSUE, kv_penalty_host=1.0, kv_penalty_external=1.0, kv_penalty_disk=1.0)
    union = max(overlap.expected_tokens, overlap.disk_tokens, pooled)
    row = a_row("a", overlap)
    assert score(row, scorer=alike, pool=PoolHit(pooled, 0.1), prompt_tokens=100_000) == [
        pytest.approx((100_000 - union + 100_000) / 16)
    ]


@pytest.mark.parametrize(
    "scorer",
    [VllmRouterKvAware(), VllmRouterKvAware(overlap_credit=2.0, decode_active_request_weight=5.0, kv_penalty_disk=0.0)],
    ids=["defaults", "others"],
)
@examples(50)
@given(st.data(), views())
def test_contract(scorer: VllmRouterKvAware, data: Any, view: Any) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
