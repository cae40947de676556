"""A ghost says what an LRU of every size would have: by hand, and against an LRU that is simulated."""

from __future__ import annotations

from collections import OrderedDict

from hypothesis import given
from hypothesis import strategies as st

from router.testbed.simulator.stack_distance import DistanceRun, PrefixCounts, StackDistances, count_within


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
