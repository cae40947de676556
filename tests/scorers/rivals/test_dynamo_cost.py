"""Worked arithmetic: blocks have 16 tokens, the prompt 1,600 (100 blocks) unless something else is said."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scorers.contract import PoolHit, Row
from scorers.rivals.dynamo_cost import DynamoCost
from tests.suites.properties import examples
from tests.suites.scorers import check_scorer
from tests.suites.views import a_load, a_row, a_view, an_overlap, views


def score(*rows: Row, scorer: DynamoCost | None = None, **known: Any) -> list[float]:
    return list((scorer or DynamoCost()).score(a_view(*rows, **({"prompt_tokens": 1600} | known))))


COLD = a_row("cold", an_overlap(0))


def test_idle_and_cold_is_the_prompt_twice_prefill_and_decode() -> None:
    assert score(COLD) == [200]


def test_what_is_held_spares_prefill_by_its_tier() -> None:
    # GPU 800, host memory to 1120, disk to 1280: prefill 1600 - 800 - 0.75 * 320 - 0.25 * 160 = 520; / 16 + 100
    assert score(a_row("a", an_overlap(800, cpu=1120, disk=1280))) == [32.5 + 100]


def test_what_was_just_sent_counts_as_held() -> None:
    assert score(a_row("a", an_overlap(0, expected=800))) == [150]


def test_queued_prefill_and_context_there_are_ahead() -> None:
    # prefill (320 + 1600 - 800) / 16 = 70, decode (4800 + 1600) / 16 = 400
    busy = a_load(requests=5, prefill_tokens=320, context_tokens=4800)
    assert score(a_row("a", an_overlap(800), busy)) == [470]


def test_prefill_weighs_by_its_scale_and_requests_by_theirs() -> None:
    # 2 * 70 + 400 + 32 * 5
    scorer = DynamoCost(prefill_load_scale=2.0, decode_active_request_weight=32.0)
    busy = a_load(requests=5, prefill_tokens=320, context_tokens=4800)
    assert score(a_row("a", an_overlap(800), busy), scorer=scorer) == [140 + 400 + 160]


def test_the_shared_cache_counts_beyond_the_gpu_once_it_is_on() -> None:
    # a: 1600 - 800 - 0.5 * (1200 - 800) = 600 -> 37.5;   b: 1600 - 0.5 * 1200 = 1000 -> 62.5
    rows = a_row("a", an_overlap(800)), a_row("b", an_overlap(0))
    pool = PoolHit(1200, 0.1)
    assert score(*rows, scorer=DynamoCost(shared_cache_multiplier=0.5), pool=pool) == [137.5, 162.5]
    assert score(*rows, pool=pool) == [150, 200]


def test_credit_ends_at_nothing_to_compute_unless_it_is_above_1() -> None:
    # 1 * 1600 spares all.  1.5 * 1600 = 2400: prefill -800 -> -50
    whole = a_row("a", an_overlap(1600))
    assert score(whole) == [100]
    assert score(whole, prompt_tokens=800) == [50]
    assert score(whole, scorer=DynamoCost(overlap_score_credit=1.5)) == [50]


def test_credit_decays_with_the_backlog_above_the_least() -> None:
    # a has 1600 more queued than b, one prompt: 1 / (1 + 1 * 1) = 0.5; prefill (1920 + 1600 - 0.5 * 800) / 16 = 195
    # b keeps its credit whole: (320 + 1600 - 800) / 16 = 70
    a = a_row("a", an_overlap(800), a_load(prefill_tokens=1920))
    b = a_row("b", an_overlap(800), a_load(prefill_tokens=320))
    assert score(a, b, scorer=DynamoCost(overlap_score_credit_decay=1.0)) == [295, 170]
    assert score(a, b) == [270, 170]


def test_larger_blocks_do_not_look_idle() -> None:
    # both have 3200 tokens to prefill and 1600 to hold, counted in blocks of 16
    load = a_load(prefill_tokens=1600)
    rows = a_row("a", an_overlap(0), load), a_row("b", an_overlap(0), load)._replace(block_tokens=128)
    assert score(*rows) == [300, 300]


def test_sixteen_tokens_a_block_where_none_is_told() -> None:
    assert score(COLD._replace(block_tokens=None)) == [200]


# missing


def test_unknown_overlap_gets_the_mean_credit() -> None:
    # known: 800 and 0, so 400: (1600 - 400) / 16 = 75
    assert score(a_row("a", an_overlap(800)), a_row("b"), COLD) == [150, 175, 200]


def test_a_prompt_of_unknown_length_is_the_longest_run() -> None:
    assert score(a_row("a", an_overlap(800)), COLD, prompt_tokens=None) == [50, 100]


def test_nothing_known_leaves_the_load() -> None:
    rows = a_row("a", load=a_load(context_tokens=160)), a_row("b", load=a_load(prefill_tokens=320))
    decaying = DynamoCost(overlap_score_credit_decay=1.0)
    assert score(*rows, prompt_tokens=None, scorer=decaying) == [10, 20]


@pytest.mark.parametrize("name", ["overlap_score_credit", "host_cache_hit_weight", "decode_active_request_weight"])
def test_no_weight_is_negative(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}: found -1.0, wanted at least 0"):
        DynamoCost(**{name: -1.0})


@given(st.lists(st.integers(0, 100), min_size=2, max_size=6))
def test_with_equal_loads_the_longest_prefix_costs_least(blocks: list[int]) -> None:
    costs = score(*[a_row(f"h{i}", an_overlap(16 * held)) for i, held in enumerate(blocks)])
    assert costs == [200 - held for held in blocks]


@pytest.mark.parametrize(
    "scorer",
    [
        DynamoCost(),
        DynamoCost(overlap_score_credit=1.5, overlap_score_credit_decay=2.0),
        DynamoCost(prefill_load_scale=0.5, shared_cache_multiplier=0.5, decode_active_request_weight=3.0),
    ],
    ids=["defaults", "decaying", "shared"],
)
@examples(50)
@given(st.data(), views())
def test_contract(scorer: DynamoCost, data: Any, view: Any) -> None:
    check_scorer(scorer, view, data.draw(st.permutations(range(len(view.rows)))))
