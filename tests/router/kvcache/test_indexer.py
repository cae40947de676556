"""What is known of targets, as stories: who joins, what is heard of them, and what outlives a restart."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.kvcache.events import BlocksPooled, BlocksStored, EngineHash, EventBatch, TargetId, Tier
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import APPLY_BLOCKS, KvIndexer, SentPrompt
from router.kvcache.instance_bounds import MEASURE_BLOCKS
from router.kvcache.overlap_estimate import NO_OVERLAP, OverlapEstimate
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from scorers.contract import Overlap
from tests.fakes.caches import RING, Cache, prompt_of
from tests.router.kvcache.house import APPROXIMATE_TTL_S, IDS, PROMPT, TTL_S, A, B, House, in_order, late, tokens


@pytest.fixture
def house() -> House:
    return House()


# all that a target holds


def test_a_trusted_stream_tells_all_that_a_target_holds(house: House) -> None:
    cache = house.join(A)
    assert house.knowledge.held_tokens(A, None, True) == 0, "nothing, and that is known"
    stored = cache.stored(IDS[:12]), cache.stored(IDS[:8], tier=Tier.CPU), cache.stored([7] * 8)
    house.knowledge.on_batch(A, cache.batch(*stored))
    assert house.knowledge.held_tokens(A, 4, True) == 4 * (3 + 2), "each block once, of whatever prompt"
    assert house.knowledge.held_tokens(A, None, True) is None
    house.send(A, prompt_of([9] * 40))
    assert house.knowledge.held_tokens(A, 4, True) == 20, "what is on its way is not there yet"


def test_joined_late_no_block_is_unknown_and_some_are_known(house: House) -> None:
    cache = late(house, capacity_blocks=6)
    assert house.knowledge.held_tokens(A, 4, True) is None
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    assert house.knowledge.held_tokens(A, 4, True) == 16
    house.knowledge.on_batch(A, cache.batch(cache.stored([9] * 8), cache.removed([9] * 8), cache.removed(IDS)))
    assert house.knowledge.held_tokens(A, 4, True) == 0, "all it can hold was announced since, and has left"


def test_without_a_stream_to_believe_it_holds_what_was_sent_there(house: House) -> None:
    house.join(B, stream=False)
    assert house.knowledge.held_tokens(B, 4, True) == 0
    assert house.knowledge.held_tokens(B, None, True) is None
    house.knowledge.on_first_byte(house.send(B))
    house.knowledge.on_first_byte(house.send(B, prompt_of([*IDS[:8], *[7] * 9])))
    assert house.knowledge.held_tokens(B, 4, True) == 4 * (4 + 2), "the first two blocks are shared"
    house.clock.advance(APPROXIMATE_TTL_S)
    assert house.knowledge.held_tokens(B, 4, True) == 0

    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    assert house.knowledge.held_tokens(A, 4, False) == 0, "its promises broke"
    assert house.knowledge.held_tokens(TargetId("never/0"), 4, True) is None


def test_between_two_replays_what_was_held_still_counts(house: House) -> None:
    cache = house.join(A, replayable=True)
    house.knowledge.on_connected(A)
    house.knowledge.on_replay_end(A, True)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:8])))
    cache.batch()  # lost on the way
    assert house.knowledge.on_batch(A, cache.batch()) is not None
    assert house.knowledge.held_tokens(A, 4, True) == 8
    assert house.knowledge.held_tokens(A, 4, False) == 0


# forgotten, restarted


def test_forgetting_takes_everything_with_it(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:8])))
    house.knowledge.on_first_byte(house.send(A, prompt_of([7] * 9), believed=False))
    house.send(A)
    cache.restart()
    house.knowledge.on_batch(A, cache.batch())
    assert house.belief(A) == OverlapEstimate(NO_OVERLAP._replace(age_s=0.0), 0, 4, 0)
    assert tokens(house.overlap(A, prompt_of([7] * 9), believed=False)) == (0, 0, 0, 0)


def test_after_a_gap_what_was_held_is_likely_and_no_more(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:8])))
    cache.seq += 1
    house.knowledge.on_batch(A, cache.batch())  # a gap, and no replay to close it
    assert house.belief(A) == OverlapEstimate(Overlap(8, 8, 8, 8, "approximate", 0.0), 0, 4, 2)
    assert house.belief(A, prompt_of([7] * 9)).overlap is None
    house.clock.advance(APPROXIMATE_TTL_S)
    assert house.belief(A).overlap is None


def test_forgetting_begins_the_turnover_again(house: House) -> None:
    cache = late(house, capacity_blocks=4)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    cache.seq += 1
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:4])))
    assert house.belief(A, prompt_of([7] * 9)).overlap is None


def test_a_restarted_engine_holds_nothing_and_that_is_known(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    cache.restart()
    house.knowledge.on_batch(A, cache.batch())
    assert house.overlap(A) == Overlap(0, 0, 0, 0, "events", 0.0)
    told = house.knowledge.describe_stream(A)
    assert told is not None
    assert told.sequencer is not None
    assert told.sequencer.restarts == 1


def test_a_cleared_cache_holds_nothing_by_any_account(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_first_byte(house.send(A, believed=False))
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS), cache.cleared()))
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)
    assert tokens(house.overlap(A, believed=False)) == (0, 0, 0, 0)


def test_a_cache_of_other_weights_is_forgotten_with_all_that_was_on_its_way(house: House) -> None:
    cache = late(house, capacity_blocks=100)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:8])))
    on_its_way = house.send(A, prompt_of([7] * 9), believed=False)
    assert house.overlap(A, prompt_of([7] * 9), believed=False).expected_tokens == 8
    house.knowledge.clear(A)
    house.knowledge.on_first_byte(on_its_way)
    assert on_its_way.speculative.forgotten
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)  # known to be empty, although its stream was joined late
    assert tokens(house.overlap(A, prompt_of([7] * 9), believed=False)) == (0, 0, 0, 0)
    house.knowledge.on_batch(A, cache.batch(cache.stored([8] * 8)))
    assert house.overlap(A, prompt_of([8] * 9)).gpu_tokens == 8
    house.knowledge.clear(TargetId("nobody/0"))


def test_events_that_wait_when_the_weights_change_are_of_the_old_weights(house: House) -> None:
    cache = house.join(A)
    ids = list(range(4 * (APPLY_BLOCKS + 10)))
    house.knowledge.on_batch(A, cache.batch(cache.stored(ids), cache.stored(IDS)))  # the second one waits
    house.knowledge.clear(A)
    assert not house.knowledge.resume(A)
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def test_joining_again_and_leaving_forget(house: House) -> None:
    cache = house.join(A)
    house.send(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored([7] * 8)))
    house.join(A)
    assert tokens(house.overlap(A, prompt_of([7] * 9))) == (0, 0, 0, 0)
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)
    house.knowledge.on_first_byte(house.send(A, believed=False))
    house.knowledge.leave(A)
    house.join(A, stream=False)
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def after_a_restart(house: House, *targets: TargetId) -> House:
    """Another router with what this one would have saved."""
    fresh = House()
    for target in targets:
        saved = house.knowledge.snapshot(target)
        assert saved is not None
        fresh.knowledge.restore(saved)
    return fresh


def test_after_a_restart_what_was_held_is_likely_until_the_stream_confirms_it(house: House) -> None:
    last = house.join(A).batch()._replace(events=[Cache().stored(IDS)])
    house.knowledge.on_batch(A, last)
    for same_process in (True, False):
        fresh = after_a_restart(house, A)
        fresh.knowledge.join(A, "m", stream=True, replayable=True)
        assert fresh.overlap(A) == Overlap(16, 16, 16, 16, "approximate", None)
        assert fresh.knowledge.block_tokens(A) == 4
        assert fresh.knowledge.on_connected(A) == last.seq, "the last batch shows who answers"
        fresh.knowledge.on_replayed(A, last if same_process else last._replace(wall_s=77.0, events=[]))
        asks = fresh.knowledge.on_replay_end(A, True)
        assert asks == (None if same_process else 0)
        held = 16 if same_process else 0
        assert tokens(fresh.overlap(A)) == (held, held, held, held)


def test_what_turned_over_before_a_restart_has_turned_over(house: House) -> None:
    cache = late(house, capacity_blocks=4)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    fresh = after_a_restart(house, A)
    fresh.knowledge.join(A, "m", stream=True, replayable=True)
    fresh.knowledge.set_capacity(A, 4)
    told = fresh.knowledge.describe_stream(A)
    assert told is not None
    assert told.turned_over
    assert told.sequencer is not None
    assert told.sequencer.joined_late


@pytest.mark.parametrize(("model", "stream"), [("another", True), ("m", False)])
def test_a_target_that_changed_over_a_restart_begins_anew(house: House, model: str, stream: bool) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    fresh = after_a_restart(house, A)
    fresh.knowledge.join(A, model, stream=stream, replayable=True)
    assert fresh.knowledge.block_tokens(A) is None
    fresh.knowledge.join(A, "m", stream=True, replayable=True)
    assert fresh.knowledge.block_tokens(A) is None, "nor later"


def test_who_has_not_come_back_is_saved_again_until_given_up(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    house.join(B, stream=False)
    assert house.knowledge.snapshot_targets() == [A]
    assert house.knowledge.snapshot(B) is house.knowledge.snapshot(TargetId("never/0")) is None
    fresh = after_a_restart(house, A)
    assert fresh.knowledge.snapshot_targets() == [A]
    again, first = fresh.knowledge.snapshot(A), house.knowledge.snapshot(A)
    assert again is not None
    assert first is not None
    assert again._replace(blocks=in_order(again.blocks)) == first._replace(blocks=in_order(first.blocks))
    fresh.knowledge.discard_restored()
    assert fresh.knowledge.snapshot_targets() == []
    fresh.knowledge.join(A, "m", stream=True, replayable=True)
    assert fresh.knowledge.block_tokens(A) is None


def test_a_request_may_end_after_its_target_left(house: House) -> None:
    house.join(A)
    first, second = house.send(A), house.send(A)
    house.knowledge.leave(A)
    house.knowledge.on_first_byte(first)
    house.knowledge.on_failure(second)
    house.join(A)
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def test_what_comes_for_a_target_that_left_is_ignored(house: House) -> None:
    cache = house.join(A)
    house.knowledge.leave(A)
    knowledge = house.knowledge
    assert knowledge.on_batch(A, cache.batch(cache.stored(IDS))) is None
    knowledge.on_replayed(A, cache.batch())
    knowledge.on_malformed(A, "odd")
    knowledge.set_capacity(A, 5)
    assert knowledge.on_connected(A) is None
    assert knowledge.on_replay_end(A, complete=True) is None
    assert knowledge.describe_stream(A) is None
    assert knowledge.block_tokens(A) is None


def test_what_people_may_know_of_a_stream(house: House) -> None:
    cache = house.join(A)
    house.join(B, stream=False)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS), skipped={"group": 2}))
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS, tier=Tier.CPU), skipped={"group": 1, "medium": 1}))
    house.knowledge.on_malformed(A, "not msgpack")
    told = house.knowledge.describe_stream(A)
    assert told is not None
    assert told.sequencer is not None
    assert (told.batches, told.malformed, dict(told.skipped)) == (3, 1, {"group": 3, "medium": 1})
    assert told.stats.blocks == (4, 4, 0)
    assert told.sequencer.events == 2
    silent = house.knowledge.describe_stream(B)
    assert silent is not None
    assert silent.sequencer is None


def test_a_large_batch_is_applied_in_pieces_and_in_order(house: House) -> None:
    cache = house.join(A)
    many = [cache.stored(list(range(n * 1000, n * 1000 + 4000))) for n in range(10)]  # 1,000 blocks each
    house.knowledge.on_batch(A, cache.batch(*many, cache.removed(list(range(4000)))))
    pieces = 1
    assert house.knowledge.snapshot(A) is None  # it would not fit its cursor
    while house.knowledge.resume(A):
        pieces += 1
    assert pieces >= 10_000 // APPLY_BLOCKS
    assert house.knowledge.snapshot(A) is not None
    told = house.knowledge.describe_stream(A)
    assert told is not None
    whole = House()
    at_once = whole.join(A)
    for event in (*many, cache.removed(list(range(4000)))):
        whole.knowledge.on_batch(A, at_once.batch(event))
    expected = whole.knowledge.describe_stream(A)
    assert expected is not None
    assert told.stats.blocks == expected.stats.blocks
    assert not house.knowledge.resume(A)
    assert not house.knowledge.resume(B)


def test_what_waits_is_dropped_when_all_is_forgotten_or_the_target_leaves(house: House) -> None:
    cache = house.join(A)
    many = [cache.stored(list(range(n * 10_000, n * 10_000 + 8000))) for n in range(5)]
    house.knowledge.on_batch(A, cache.batch(*many))
    house.knowledge.on_batch(A, EventBatch(0, 1e9, 0, [], {}))  # another process
    while house.knowledge.resume(A):
        pass
    assert house.knowledge.held_tokens(A, 4, True) == 0
    house.knowledge.on_batch(A, EventBatch(1, 1e9 + 1, 0, list(many), {}))
    house.knowledge.leave(A)
    assert not house.knowledge.resume(A)


def fill(indexer: KvIndexer, target: TargetId, first: int, blocks: int) -> None:
    """One event of blocks of one token."""
    state = indexer._states[target]
    assert state.sequencer is not None
    hashes, ids = [EngineHash(first + n) for n in range(blocks)], [first + n for n in range(blocks)]
    event = BlocksStored(hashes, None, ids, 1, Tier.GPU, 0, None, None, None)
    seq = state.sequencer.last_seq + 1
    indexer.on_batch(target, EventBatch(seq, 2000.0 + seq, 0, [event], {}))


def test_an_instance_may_take_so_many_bytes_over_all_its_ranks() -> None:
    index = BlockIndex(RING)
    parts = index, SpeculativeBlocks(5.0), ApproximateBlocks(100, 5.0), ManualClock()
    probe = TargetId("probe/0")
    unlimited = KvIndexer(*parts)
    unlimited.join(probe, "m", stream=True, replayable=False)
    fill(unlimited, probe, 0, MEASURE_BLOCKS)
    limit = 3 * index.size(probe).bytes
    indexer = KvIndexer(*parts, instance_bytes=limit)
    ranks = [TargetId("a/0"), TargetId("a/1"), TargetId("b/0")]
    for target in ranks:
        indexer.join(target, "m", stream=True, replayable=False)
        fill(indexer, target, 0, MEASURE_BLOCKS)
        assert indexer.over_bounds(target) is None
    fill(indexer, ranks[1], MEASURE_BLOCKS, MEASURE_BLOCKS * 2)
    over = indexer.over_bounds(ranks[1])
    assert over == ("blocks", f"its KV events take more than {limit:,} bytes (index.instance_bytes)")
    assert indexer.over_bounds(ranks[2]) is None
    for target in ranks[:2]:
        indexer.join(target, "m", stream=True, replayable=False)
        assert indexer.over_bounds(target) is None
    fill(indexer, ranks[1], 0, MEASURE_BLOCKS)
    assert indexer.over_bounds(ranks[1]) is None
    for target in ranks:
        indexer.leave(target)
    assert not indexer._bounds._instance_bytes


def test_a_target_may_hold_so_many_times_its_cache() -> None:
    parts = BlockIndex(RING), SpeculativeBlocks(5.0), ApproximateBlocks(100, 5.0), ManualClock()
    indexer = KvIndexer(*parts)
    indexer.join(A, "m", stream=True, replayable=False)
    for first in range(0, 70_000, 10_000):
        fill(indexer, A, first, 10_000)
    assert indexer.over_bounds(A) is None  # its capacity is not known
    indexer.set_capacity(A, 100)
    fill(indexer, A, 70_000, 10_000)
    assert indexer.over_bounds(A) == ("blocks", "KV events of more than 65,536 blocks, 16 GPU caches")


def test_a_target_may_have_few_block_sizes(house: House) -> None:
    house.join(A)
    for seq, size in enumerate((1, 2, 1, 2, 3, 4, 5), start=1):
        assert house.knowledge.over_bounds(A) is None
        event = BlocksStored([EngineHash(seq)], None, [seq] * size, size, Tier.GPU, 0, None, None, None)
        house.knowledge.on_batch(A, EventBatch(seq, 5000.0 + seq, 0, [event], {}))
    assert house.knowledge.over_bounds(A) == ("block_size", "KV events with more than 4 block sizes")


def test_events_of_chunked_local_attention_are_refused() -> None:
    """Full attention alone would promise more than such an engine re-uses."""
    house = House()
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS), skipped={"group": 1}))
    assert house.knowledge.over_bounds(A) is None
    house.knowledge.on_batch(A, cache.batch(skipped={"chunked": 1}))
    assert house.knowledge.over_bounds(A) == (
        "groups",
        "KV events of chunked local attention: what is re-used of it is unknown",
    )
    house.join(A)
    assert house.knowledge.over_bounds(A) is None


# whatever happens

LENGTHS = st.integers(0, len(IDS))
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("stored"), LENGTHS, st.sampled_from(list(Tier))),
        st.tuples(st.just("removed"), LENGTHS, st.sampled_from(list(Tier))),
        st.tuples(st.just("sent"), LENGTHS, st.booleans()),
        st.tuples(st.sampled_from(["began", "failed"])),
        st.tuples(st.sampled_from(["cleared", "gap", "restart", "wait", "connected"])),
    ),
    max_size=25,
)


def take(house: House, cache: Cache, step: tuple[Any, ...], open_: list[SentPrompt]) -> None:
    match step:
        case ("stored", length, tier):
            house.knowledge.on_batch(A, cache.batch(*([cache.stored(IDS[:length], tier=tier)] if length >= 4 else [])))
        case ("removed", length, tier):
            house.knowledge.on_batch(A, cache.batch(cache.removed(IDS[:length], tier=tier)))
        case ("sent", length, believed):
            open_.append(house.send(A, prompt_of(IDS[:length]), believed=believed))
        case ("began",) if open_:
            house.knowledge.on_first_byte(open_.pop(0))
        case ("failed",) if open_:
            house.knowledge.on_failure(open_.pop(0))
        case ("cleared",):
            house.knowledge.on_batch(A, cache.batch(cache.cleared()))
        case ("gap",):
            cache.seq += 1
        case ("restart",):
            cache.restart()
        case ("wait",):
            house.clock.advance(TTL_S / 2)
        case ("connected",):
            house.knowledge.on_connected(A)


def check(belief: OverlapEstimate, length: int) -> None:
    if (overlap := belief.overlap) is not None:
        gpu, cpu, disk, expected = tokens(overlap)
        assert 0 <= gpu <= cpu <= disk <= max(0, length - 1) // 4 * 4
        assert gpu <= expected <= max(0, length - 1) // 4 * 4
        assert {count % 4 for count in (gpu, cpu, disk, expected)} == {0}
        assert belief.held_blocks * 4 == gpu
        if overlap.source == "events":
            assert belief.indexed_tokens == disk
        else:
            assert gpu == disk or belief.indexed_tokens == disk, "only events of a late stream know other tiers"


@given(STEPS, LENGTHS)
def test_whatever_happens_beliefs_are_what_the_contract_says(steps: Sequence[tuple[Any, ...]], length: int) -> None:
    house = House()
    cache = house.join(A)
    prompt = prompt_of(IDS[:length])
    open_: list[SentPrompt] = []
    for step in steps:
        take(house, cache, step, open_)
        for believed in (True, False):
            check(house.belief(A, prompt, believed=believed), length)
    for number, sent in enumerate(open_):
        (house.knowledge.on_first_byte if number % 2 else house.knowledge.on_failure)(sent)
    house.clock.advance(TTL_S)
    for believed in (True, False):
        overlap = house.belief(A, prompt, believed=believed).overlap
        assert overlap is None or overlap.expected_tokens == overlap.gpu_tokens, "nothing is expected for ever"


def test_the_pool_sees_the_roots_and_what_was_put_into_it(house: House) -> None:
    cache = house.join(A)
    root, rest = cache.stored(IDS[:8]), cache.stored(IDS, start=2)
    on_host = cache.stored(IDS[:8], tier=Tier.CPU)
    pooled = BlocksPooled(cache.hashes(IDS)[:1], None, array("I", IDS[:4]), 4)
    house.knowledge.on_batch(A, cache.batch(root, rest, on_host, pooled))
    assert house.witnessed == [("m", root), ("m", pooled)]
    assert house.overlap(A).gpu_tokens == 16, "what went into the pool is not held twice"


def test_nobody_need_witness() -> None:
    clock = ManualClock(1000.0, wall=1000.0)
    knowledge = KvIndexer(
        BlockIndex(RING), SpeculativeBlocks(TTL_S), ApproximateBlocks(10_000, APPROXIMATE_TTL_S), clock
    )
    knowledge.join(A, "m", stream=True, replayable=False)
    cache = Cache()
    pooled = BlocksPooled(cache.hashes(IDS)[:1], None, array("I", IDS[:4]), 4)
    knowledge.on_batch(A, cache.batch(cache.stored(IDS), pooled))
    assert tokens(knowledge.estimate_overlaps(PROMPT, {A: 4}, frozenset())[A].overlap) == (16, 16, 16, 16)


def test_a_process_whose_numbers_go_on_is_found_out_by_the_size_of_its_cache(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a replay endpoint. What the process before it held is believed until both do not fit the GPU."""
    cache, knowledge = house.join(A), house.knowledge
    knowledge.set_capacity(A, 6, 6)
    knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    knowledge.on_connected(A)
    other = list(range(500, 516))
    knowledge.on_batch(A, cache.batch(cache.stored(other[:8])))
    assert house.overlap(A).gpu_tokens == 16, "nothing shows that these are gone"
    knowledge.on_batch(A, cache.batch(cache.stored(other, start=2)))
    stream = knowledge.describe_stream(A)
    assert stream is not None
    assert stream.sequencer is not None
    assert (stream.overfull, stream.sequencer.joined_late, stream.turned_over) == (1, True, False)
    assert caplog.messages == ["a/0: its events leave more blocks than the 6 of its GPU: index of this target cleared"]
    assert house.belief(A).overlap is None, "unknown"
    knowledge.on_batch(A, cache.batch(cache.stored(other)))
    assert house.overlap(A, prompt_of([*other, 0])).gpu_tokens == 16
    assert len(caplog.messages) == 1


def test_blocks_that_wait_for_their_parents_take_room_too(house: House) -> None:
    cache, knowledge = house.join(A), house.knowledge
    knowledge.set_capacity(A, 6, 6)
    for first in range(7):
        ids = list(range(first * 50, first * 50 + 8))
        knowledge.on_batch(A, cache.batch(cache.stored(ids, start=1)))
    stream = knowledge.describe_stream(A)
    assert stream is not None
    assert (stream.overfull, stream.stats.orphans) == (1, 0)


def test_a_gpu_may_have_more_blocks_than_its_tokens_make(house: House) -> None:
    """Groups of a hybrid model share them: the page says how many blocks, and how many tokens fit."""
    cache, knowledge = house.join(A), house.knowledge
    knowledge.set_capacity(A, 2, 6)
    knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    assert house.overlap(A).gpu_tokens == 16


def test_entries_inside_blocks_are_counted_and_do_not_turn_a_cache_over(house: House) -> None:
    cache, small = late(house, capacity_blocks=4), Cache(2)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:8])))
    for first in (300, 400, 500):
        house.knowledge.on_batch(A, cache.batch(small.stored([first, first + 1])))
    stream = house.knowledge.describe_stream(A)
    assert stream is not None
    assert (dict(stream.skipped), stream.turned_over) == ({"partial": 3}, False)
    assert house.knowledge.block_tokens(A) == 4
    assert house.overlap(A).gpu_tokens == 8
    house.knowledge.clear(A)
    told = house.knowledge.describe_stream(A)
    assert told is not None
    assert told.skipped["partial"] == 3, "a counter does not fall"


def test_full_reports_leave_no_phantoms_and_do_not_turn_a_cache_over(house: House) -> None:
    """`kv_cache_report_mode: full`: what is held is announced again with each hit, and removed once."""
    cache, knowledge = house.join(A), house.knowledge
    knowledge.set_capacity(A, 4, 4)
    for _ in range(3):
        knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    knowledge.on_batch(A, cache.batch(cache.removed(IDS, start=1)))
    assert house.overlap(A).gpu_tokens == 4
    stream = knowledge.describe_stream(A)
    assert stream is not None
    assert (stream.overfull, stream.stats.blocks) == (0, (1, 0, 0))


def test_full_reports_of_a_stream_joined_late_do_not_turn_its_cache_over(house: House) -> None:
    cache = late(house, capacity_blocks=9)
    house.knowledge.set_capacity(A, 9, 5)
    for _ in range(8):
        house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    stream = house.knowledge.describe_stream(A)
    assert stream is not None
    assert not stream.turned_over
