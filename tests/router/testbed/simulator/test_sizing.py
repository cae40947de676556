"""Advice by hand, and what must hold of any: more memory never finds less, and nothing beats the ideal."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.testbed.engine_profile import EngineProfile
from router.testbed.simulator.scenario import LinkSpeed
from router.testbed.simulator.sizing import SizingCell, advise
from router.testbed.workloads import TOOLS, Span
from router.testbed.workloads.statistics import compute_statistics
from router.testbed.workloads.timeline import TimedRequest, lay_out

PLAIN = EngineProfile(
    name="plain",
    kv_tokens=4 * 512,
    kv_bytes_per_token=1000.0,
    us_per_token=1000.0,  # a millisecond per token, and nothing else
    ns_per_pair=0.0,
    us_per_decode=0.0,
    weights_ms=0.0,
    ns_per_context_token=0.0,
)
LINK = LinkSpeed(tokens_per_s=10_000.0, base_ms=50.0)
A, B = [Span(1, 1600)], [Span(2, 1600)]  # three full blocks and 64 tokens each


def sent(*prompts: list[Span]) -> list[TimedRequest]:
    return [TimedRequest(float(at), spans, [*spans, Span(100 + at, 1)], 2) for at, spans in enumerate(prompts)]


def test_by_hand() -> None:
    # one instance with room for four blocks: A, B, A. When A comes again its own cache has A's first block, the pool of
    # six all three
    found = advise(sent(A, B, A), PLAIN, [1], [0, 6 * 512], LINK)
    assert found.working_set_tokens == 6 * 512
    alone, pooled = found.cells
    assert alone == SizingCell(1, "by prefix", 0, 3, 4800, 512, 0, pytest.approx((1.6 + 1.6 + 1.088) / 3))
    # loads 1024 tokens: 0.05 + 0.1024 s, and computes 64
    assert pooled == SizingCell(1, "by prefix", 3072, 3, 4800, 512, 1024, pytest.approx((3.2 + 0.1524 + 0.064) / 3))
    assert pooled.hit_share == 1536 / 4800


def test_two_instances_keep_two_prefixes_apart() -> None:
    by_prefix, at_random = advise(sent(*[A, B] * 20), PLAIN, [2], [0], LINK).cells
    assert (by_prefix.placement, at_random.placement) == ("by prefix", "at random")
    assert by_prefix.local_tokens == 38 * 3 * 512
    assert at_random.local_tokens < by_prefix.local_tokens


def test_a_match_is_no_reason_to_overload_an_instance() -> None:
    """Everybody begins with one hot block, so all go where it is, were it not for their share."""
    hot = [[Span(1, 512), Span(10 + at, 1000)] for at in range(40)]
    two = advise(sent(*hot), PLAIN, [2], [0], LINK).cells[0]
    # in turns: the hot block is computed twice, not once
    assert two.local_tokens == 38 * 512


def test_the_last_token_is_always_computed() -> None:
    whole = [Span(1, 1024)]
    (cell,) = advise(sent(whole, whole), PLAIN, [1], [0], LINK).cells
    assert cell.local_tokens == 512


def test_answers_are_in_the_instances_caches_and_not_in_the_pool() -> None:
    turns = [
        TimedRequest(0.0, [Span(1, 400)], [Span(1, 400), Span(2, 700)], 701),
        TimedRequest(1.0, [Span(1, 400), Span(2, 701), Span(3, 50)], [Span(1, 400), Span(2, 701), Span(3, 50)], 1),
    ]
    local, pooled = advise(turns, PLAIN, [1], [0, 1 << 20], LINK).cells
    assert local.local_tokens == pooled.local_tokens == 1024
    assert pooled.loaded_tokens == 0


def test_more_memory_never_finds_less_and_nobody_beats_the_ideal() -> None:
    workload = replace(TOOLS, requests=400).workload(1)
    small = replace(PLAIN, kv_tokens=60 * 512)
    pools = [0, 20_000, 200_000, 2_000_000, 20_000_000]
    found = advise(lay_out(workload), small, [1, 4], pools, LINK)
    ideal = compute_statistics(workload, 512).ideal_share
    assert found.working_set_tokens <= pools[-1]
    for at in range(0, len(found.cells), len(pools)):
        shares = [cell.hit_share for cell in found.cells[at : at + len(pools)]]
        assert shares == sorted(shares)
        assert shares[-1] == pytest.approx(ideal)


def test_the_same_seed_says_the_same() -> None:
    requests = list(lay_out(replace(TOOLS, requests=200).workload(1)))
    one, other, third = (advise(requests, PLAIN, [4], [0], LINK, seed) for seed in (1, 1, 2))
    assert one == other
    assert one != third


def test_no_requests_no_advice() -> None:
    with pytest.raises(ValueError, match="no requests"):
        advise([], PLAIN, [1], [0], LINK)
