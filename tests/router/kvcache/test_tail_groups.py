"""Hybrid models: what an engine re-uses of a prompt, against vLLM's own search and against requests to a real vLLM."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Key, TailsStored, TargetId, Tier
from router.kvcache.index import BlockIndex, HeldBlocks
from router.kvcache.snapshot_format import SavedTargetBlocks
from router.kvcache.tail_groups import Tails, TailShape, TailTable
from tests.fakes.caches import RING, prompt_of, read_batch
from tests.paths import ROOT
from tests.router.kvcache.house import A, House
from tests.suites.properties import examples

BLOCK = 32
SHAPE = TailShape(BLOCK, 1, True)


def longest_tail(held: Sequence[bool], need: int, *, leading: bool) -> int:
    """Return what a group re-uses, by a search from right to left, block by block."""
    run = 0
    for n in range(len(held) - 1, -1, -1):
        run = run + 1 if held[n] else 0
        if run == need:
            return n + need
    return run if leading else 0


@examples(300)
@given(
    groups=st.lists(
        st.tuples(st.integers(1, 6), st.booleans(), st.lists(st.booleans(), min_size=24, max_size=24)), max_size=3
    ),
    blocks=st.integers(0, 24),
)
def test_the_search_finds_what_a_search_block_by_block_finds(
    groups: list[tuple[int, bool, list[bool]]], blocks: int
) -> None:
    keys = [Key(100 + n) for n in range(24)]
    tails = Tails({}, 4)
    for number, (need, leading, held) in enumerate(groups):
        tail = tails.group(number, TailShape(BLOCK, need, leading))
        tail.store([n for n in range(24) if held[n]], lambda n: Key(100 + n))
    kinds: dict[tuple[int, bool], list[bool]] = {}
    for need, leading, held in groups:
        both = kinds.get((need, leading), held)
        kinds[need, leading] = [one and other for one, other in zip(both, held, strict=True)]
    expected, before = blocks, -1
    while expected != before:
        before = expected
        for (need, leading), held in kinds.items():
            expected = longest_tail(held[:expected], need, leading=leading)
    assert tails.count_reusable(keys, blocks, BLOCK) == expected


@examples(200)
@given(
    steps=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 5), st.sampled_from(["store", "remove", "name"])), max_size=60
    )
)
def test_a_key_is_held_while_every_group_has_a_copy_of_its_block(steps: list[tuple[int, int, str]]) -> None:
    tables: dict[TailShape, TailTable] = {}
    tails = Tails(tables, 4)
    copies: dict[int, Counter[int]] = {}
    named: set[int] = set()
    for number, label, what in steps:
        if what == "name":
            named.add(label)
            for group in tails.groups.values():
                group.name(label, Key(100 + label))
        elif what == "store":
            group = tails.group(number, SHAPE)
            group.store([label], lambda label: Key(100 + label) if label in named else None)
            copies.setdefault(number, Counter())[label] += 1
        elif (group := tails.groups.get(number)) is not None:
            group.remove([label])
            copies[number][label] = max(0, copies[number][label] - 1)
        everywhere = {label for label in named if all(one[label] for one in copies.values())} if copies else set()
        assert tables.get(SHAPE, {}) == {100 + label: 4 for label in everywhere}


STEP = st.one_of(
    *3 * [st.tuples(st.just("tail"), st.integers(0, 1), st.integers(0, 2), st.integers(0, 9), st.integers(1, 4))],
    st.tuples(st.just("evict"), st.integers(0, 1), st.integers(0, 3), st.integers(0, 9), st.integers(1, 3)),
    st.tuples(st.just("full"), st.integers(0, 1), st.integers(1, 10)),
    st.tuples(st.sampled_from(["forget", "join", "second full"]), st.integers(0, 1), st.just(10)),
)


@examples(300)
@given(steps=st.lists(STEP, min_size=12, max_size=30), asked=st.integers(5, 10))
def test_all_targets_at_once_re_use_what_each_one_does(steps: list[tuple[Any, ...]], asked: int) -> None:
    """By bits of all targets, and by a search in each: at every moment, also of targets of several kinds."""
    index, targets = BlockIndex(RING), [TargetId("a/0"), TargetId("b/0")]
    shapes = TailShape(BLOCK, 3, True), TailShape(BLOCK, 2, True), TailShape(BLOCK, 1, False)
    for target in targets:
        index.join(target, "m")
        index.apply(target, CHAIN)
    for what, number, *rest in steps:
        target = targets[number]
        if what == "full" or what == "second full":
            (blocks,) = rest
            ids = IDS[: blocks * BLOCK]
            group = 2 if what == "full" else 3
            index.apply(target, CHAIN._replace(hashes=HASHES[:blocks], token_ids=ids, group=group))
        elif what == "tail":
            shape, start, blocks = shapes[rest[0]], rest[1], rest[2]
            group = 10 + rest[0]
            index.apply(target, TailsStored(HASHES[start : start + blocks], group, *shape, from_start=False))
        elif what == "evict":
            group, start, blocks = (2, 10, 11, 12)[rest[0]], rest[1], rest[2]
            index.apply(target, BlocksRemoved(HASHES[start : start + blocks], Tier.GPU, group))
        elif what == "forget":
            index.forget(target)
        else:
            index.join(target, "m")
        keys = RING.chain(RING.root("m", None, None), WHOLE, BLOCK)[:asked]
        held, less = index.match_reused(keys, targets)
        one_by_one = {of: index.count_reusable(of, keys, held[of].gpu) for of in held if of in index.hybrid}
        assert held == index.match(keys, targets)
        assert {of: less.get(of, held[of].gpu) for of in held} == {of: held[of].gpu for of in held} | one_by_one
        groups = {of: one.reused for one in index.match_all(keys) for of in index.targets_of(one.bits)}
        assert all(groups[of] == reused for of, reused in one_by_one.items() if of not in index.odd)
    for target in targets:
        index.leave(target)
    while index.sweep():
        pass
    assert not any(index._tail_tables.values())


def rows(name: str) -> Iterator[dict[str, Any]]:
    with gzip.open(ROOT / f"tests/data/vllm-0.32-hybrid-{name}.jsonl.gz", "rt") as lines:
        yield from map(json.loads, lines)


def promise(index: BlockIndex, ids: list[int], salt: str | None = None) -> int:
    """Return the tokens that the index says are re-used; the last one is always computed."""
    keys = RING.chain(RING.root("m", None, salt), ids, BLOCK)[: (len(ids) - 1) // BLOCK]
    return BLOCK * index.count_reusable(A, keys, index.match(keys, [A]).get(A, HeldBlocks(0, 0, 0)).gpu)


def index_of(*events: Any) -> BlockIndex:
    index = BlockIndex(RING)
    index.join(A, "m")
    for event in events:
        index.apply(A, event)
    return index


@pytest.mark.parametrize(("name", "requests"), [("evict", 35), ("full-report", 22)])
def test_what_a_real_engine_with_sliding_windows_delivered_was_predicted(name: str, requests: int) -> None:
    index = index_of()
    differing, seen = [], 0
    for row in rows(name):
        for event in read_batch(row["batch"]["events"]).events if "batch" in row else ():
            index.apply(A, event)  # type: ignore[arg-type]
        if (request := row.get("request")) is not None:
            seen += 1
            promised = promise(index, request["token_ids"], request.get("cache_salt"))
            if promised != row["cached_tokens"]:
                differing.append((request["label"], promised, row["cached_tokens"]))
    assert (seen, differing) == (requests, [])


IDS = list(range(1000, 1000 + 10 * BLOCK))
HASHES = [EngineHash(n) for n in range(1, 11)]
CHAIN = BlocksStored(HASHES, None, IDS, BLOCK, Tier.GPU, 2, None, None, None)
WINDOW = TailsStored(HASHES[2:6], 0, BLOCK, 4, True, False)
WHOLE = [*IDS, 1]


@pytest.mark.parametrize("events", [[WINDOW, CHAIN], [CHAIN, WINDOW]], ids=["before", "after"])
def test_a_tail_counts_whether_it_is_announced_before_full_attention_or_after(events: list[Any]) -> None:
    index = index_of(*events)
    assert promise(index, WHOLE) == 6 * BLOCK
    index.apply(A, BlocksRemoved([HASHES[3]], Tier.GPU, 0))
    assert promise(index, WHOLE) == 0
    assert promise(index_of(CHAIN), WHOLE) == 10 * BLOCK


def test_a_tail_of_a_chain_whose_beginning_comes_later_counts_then() -> None:
    rest = CHAIN._replace(hashes=HASHES[2:], parent=HASHES[1], token_ids=IDS[2 * BLOCK :])
    index = index_of(WINDOW, rest)
    assert promise(index, WHOLE) == 0
    index.apply(A, CHAIN._replace(hashes=HASHES[:2], token_ids=IDS[: 2 * BLOCK]))
    assert promise(index, WHOLE) == 6 * BLOCK


def test_all_groups_of_a_kind_must_hold_a_tail_and_each_copy_counts() -> None:
    index = index_of(CHAIN, WINDOW, WINDOW._replace(group=1, hashes=HASHES[3:7]))
    assert promise(index, WHOLE) == 0
    index.apply(A, WINDOW._replace(group=1))
    assert promise(index, WHOLE) == 6 * BLOCK
    index.apply(A, BlocksRemoved(HASHES[3:7], Tier.GPU, 1))
    assert promise(index, WHOLE) == 6 * BLOCK
    index.apply(A, BlocksRemoved([HASHES[4]], Tier.GPU, 1))
    assert promise(index, WHOLE) == 0


def test_states_beside_windows_count_where_both_are_held() -> None:
    states = TailsStored([HASHES[3], HASHES[8]], 1, BLOCK, 1, False, False)
    index = index_of(CHAIN, states)
    assert promise(index, WHOLE) == 9 * BLOCK
    index.apply(A, WINDOW)
    assert promise(index, WHOLE) == 0
    index.apply(A, TailsStored([HASHES[5]], 1, BLOCK, 1, False, False))
    assert promise(index, WHOLE) == 6 * BLOCK


def test_a_report_of_a_hit_is_no_copy_and_adds_nothing() -> None:
    report = WINDOW._replace(hashes=HASHES[:8], from_start=True)
    index = index_of(CHAIN, WINDOW, report)
    assert promise(index, WHOLE) == 6 * BLOCK
    index.apply(A, BlocksRemoved([HASHES[5]], Tier.GPU, 0))
    assert promise(index, WHOLE) == 0


def test_a_group_that_keeps_nothing_yet_is_known_all_the_same() -> None:
    assert promise(index_of(CHAIN, WINDOW._replace(hashes=[])), WHOLE) == 0


def test_a_target_that_was_cleared_is_still_a_hybrid_model_s() -> None:
    index = index_of(CHAIN, WINDOW)
    index.forget(A)
    index.apply(A, CHAIN)
    assert promise(index, WHOLE) == 0
    index.join(A, "m")
    index.apply(A, CHAIN)
    assert promise(index, WHOLE) == 10 * BLOCK


@pytest.mark.parametrize(
    ("tail", "blocks"),
    [
        (WINDOW._replace(block_tokens=48), 10),  # cannot be compared
        (WINDOW._replace(block_tokens=64, need=1), 6),  # its blocks end with the 4th and 6th here
        (WINDOW._replace(block_tokens=64, need=2, hashes=[HASHES[3], HASHES[5], HASHES[7]]), 8),
        (WINDOW._replace(block_tokens=16, need=5), 6),  # only every second of its blocks ends with one here
        (TailsStored([HASHES[4]], 0, 64, 1, False, False), 5),  # a state inside its block
    ],
)
def test_groups_with_blocks_of_another_size(tail: TailsStored, blocks: int) -> None:
    assert promise(index_of(CHAIN, tail), WHOLE) == blocks * BLOCK


def test_every_group_of_full_attention_must_hold_a_block() -> None:
    second = CHAIN._replace(group=3)
    tail = WINDOW._replace(hashes=HASHES, need=1)
    index = index_of(CHAIN, tail)
    assert promise(index, WHOLE) == 10 * BLOCK
    index.apply(A, second._replace(hashes=HASHES[:8], token_ids=IDS[: 8 * BLOCK]))
    assert promise(index, WHOLE) == 8 * BLOCK
    index.apply(A, BlocksRemoved([HASHES[6]], Tier.GPU, 2))
    assert promise(restored(index), WHOLE) == promise(index, WHOLE) == 6 * BLOCK
    index.apply(A, BlocksRemoved([HASHES[6]], Tier.GPU, 3))
    index.apply(A, CHAIN)
    assert promise(index, WHOLE) == 6 * BLOCK
    index.apply(A, second)
    assert promise(restored(index), WHOLE) == promise(index, WHOLE) == 10 * BLOCK


def restored(index: BlockIndex) -> BlockIndex:
    """Return an index that was made from a snapshot."""
    saved = index.snapshot(A)
    assert saved is not None
    other = BlockIndex(RING)
    other.restore(A, msgspec.msgpack.decode(msgspec.msgpack.encode(saved), type=SavedTargetBlocks))
    assert other.join_restored(A, "m")
    return other


def test_tails_are_in_a_snapshot() -> None:
    other = restored(index_of(CHAIN, WINDOW, WINDOW, WINDOW._replace(group=1)))
    assert promise(other, WHOLE) == 6 * BLOCK
    for expected in (6 * BLOCK, 0):
        other.apply(A, BlocksRemoved(HASHES[2:6], Tier.GPU, 0))
        assert promise(other, WHOLE) == expected


def test_the_second_sibling_on_its_way_lets_the_third_one_re_use() -> None:
    """The first one ends elsewhere; the second parts from it, computes everything, and leaves a tail at that place."""
    house = House()
    cache = house.join(A)
    first, second, third = ([*range(16), *range(n, n + 14)] for n in (100, 200, 300))  # blocks of 4 tokens
    tail = TailsStored(cache.hashes(first)[6:7], 1, 4, 1, False, False)
    house.knowledge.on_batch(A, cache.batch(cache.stored(first), tail))

    def expected(ids: list[int]) -> tuple[int, int, int]:
        found = house.belief(A, prompt_of(ids))
        assert found.overlap is not None
        return found.overlap.gpu_tokens, found.overlap.expected_tokens, found.recomputed_tokens

    assert expected(first) == (28, 28, 0)
    assert expected(second) == (0, 16, 16)
    sent = house.send(A, prompt_of(second))
    assert expected(second) == (0, 28, 0), "the same prompt once more"
    assert expected(third) == (0, 16, 0)
    house.knowledge.on_failure(sent)
    assert expected(third) == (0, 16, 16)


STORED = {"type": "BlockStored", "block_hashes": [5, 6], "parent_block_hash": None, "token_ids": [0] * 96}
STORED |= {"block_size": 16, "lora_id": None, "medium": "GPU", "lora_name": None, "group_idx": 1}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        (
            {"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 128},
            TailsStored([5, 6], 1, 16, 8, True, False),
        ),
        (
            {"kv_cache_spec_kind": "sliding_window_mla", "kv_cache_spec_sliding_window": 17, "token_ids": [0] * 32},
            TailsStored([5, 6], 1, 16, 1, True, True),
        ),
        ({"kv_cache_spec_kind": "mamba"}, TailsStored([5, 6], 1, 16, 1, False, False)),
        ({"kv_cache_spec_kind": "mamba", "block_hashes": []}, TailsStored([], 1, 16, 1, False, False)),
        ({"kv_cache_spec_kind": "mamba", "medium": "CPU"}, "group"),
        ({"kv_cache_spec_kind": "chunked_local_attention"}, "chunked"),
        ({"kv_cache_spec_kind": "sliding_window"}, "group"),
        ({"kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": 0}, "broken"),
        ({"kv_cache_spec_kind": "mamba", "block_size": 0}, "broken"),
    ],
)
def test_events_of_tails(fields: dict[str, Any], expected: Any) -> None:
    batch = read_batch([STORED | fields])
    if isinstance(expected, str):
        assert (batch.events, batch.skipped) == ([], {expected: 1})
    else:
        assert batch.events == [expected]
