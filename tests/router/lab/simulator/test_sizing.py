"""Hits by pool and fleet size, and the stack distances that they are counted by."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.lab.engine_profile import EngineProfile
from router.lab.simulator.scenario import LinkSpeed
from router.lab.simulator.sizing import DistanceRun, PrefixCounts, SizingCell, StackDistances, advise, count_within
from router.lab.workloads.model import Span, TimedRequest, lay_out
from router.lab.workloads.presets import TOOLS
from router.lab.workloads.statistics import compute_statistics

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


def test_distances_by_hand() -> None:
    ghost = StackDistances()
    ghost.touch([1, 2, 3])  # most recent first: 1 2 3
    ghost.touch([1, 4])  # 1 4 2 3
    assert ghost.runs([1, 2, 3]) == [DistanceRun(1, 1, 1), DistanceRun(2, 3, 0)]
    assert ghost.runs([1, 4, 9]) == [DistanceRun(2, 1, 1)]
    assert ghost.runs([9, 1]) == []
    assert ghost.blocks == 4


def test_within_counts_leading_blocks() -> None:
    runs = [DistanceRun(1, 1, 1), DistanceRun(2, 3, 0)]
    assert [count_within(runs, capacity) for capacity in range(6)] == [0, 1, 1, 2, 3, 3]
    assert count_within([], 9) == 0


@st.composite
def histories(draw: st.DrawFn) -> list[list[int]]:
    """Paths in a tree: a block's name says which choices led to it."""
    choices = draw(st.lists(st.lists(st.integers(1, 2), max_size=5), max_size=30))
    return [[int("".join(map(str, path[: depth + 1]))) for depth in range(len(path))] for path in choices]


@given(histories())
def test_it_equals_a_plain_lru_of_every_capacity(history: list[list[int]]) -> None:
    ghost = StackDistances()
    seen = []
    for path in history:
        seen.append(ghost.runs(path))
        ghost.touch(path, seen[-1])
    assert ghost.blocks == len({block for path in history for block in path})
    for capacity in range(ghost.blocks + 2):
        assert [count_within(runs, capacity) for runs in seen] == plain(history, capacity)


def plain(history: list[list[int]], capacity: int) -> list[int]:
    """Leading blocks that each request finds in an LRU that touches tails first."""
    cached: OrderedDict[int, None] = OrderedDict()
    found = []
    for path in history:
        found.append(next((depth for depth, block in enumerate(path) if block not in cached), len(path)))
        for block in reversed(path):
            cached[block] = None
            cached.move_to_end(block)
            if len(cached) > capacity:
                cached.popitem(last=False)
    return found


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(-3, 9)), max_size=60))
def test_counts_equal_a_plain_list(plan: list[tuple[bool, int, int]]) -> None:
    counts, known = PrefixCounts(), list[int]()
    for appended, index, value in plan:
        if appended or index >= len(known):
            counts.append(value)
            known.append(value)
        else:
            counts.add(index, value)
            known[index] += value
        assert len(counts) == len(known)
        assert [counts.after(at) for at in range(len(known))] == [sum(known[at + 1 :]) for at in range(len(known))]
