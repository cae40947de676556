"""What is believed of targets, as stories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import BlocksCleared, TailsStored, TargetId, Tier
from router.kvcache.overlap_estimate import CACHE_TTL_S, OverlapEstimate
from scorers.contract import Overlap
from tests.fakes.caches import Cache, prompt_of
from tests.router.kvcache.house import APPROXIMATE_TTL_S, IDS, PROMPT, TTL_S, A, B, House, late, tokens
from tests.suites.properties import examples


@pytest.fixture
def house() -> House:
    return House()


# a stream that can be trusted


def test_a_trusted_stream_is_the_truth(house: House) -> None:
    cache = house.join(A)
    house.join(B)
    assert house.belief(A) == OverlapEstimate(Overlap(0, 0, 0, 0, "events", 0.0), 0, 4, 0)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:12])))
    house.clock.advance(2.5)
    assert house.belief(A) == OverlapEstimate(Overlap(12, 12, 12, 12, "events", 2.5), 12, 4, 3)
    assert house.overlap(B) == Overlap(0, 0, 0, 0, "events", 2.5)


def test_ages_are_whole_milliseconds(house: House) -> None:
    house.join(A)
    house.clock.advance(1.0 / 3)
    assert repr(house.overlap(A).age_s) == "0.333"
    house.clock.advance(1.0 / 3)
    assert repr(house.overlap(A).age_s) == "0.667"


def test_a_hybrid_model_promises_what_it_re_uses_and_attracts_by_what_it_holds(house: House) -> None:
    cache = house.join(A)
    stored = cache.stored(IDS[:12])
    window = TailsStored(stored.hashes[:2], 1, 4, 2, leading=True, from_start=False)
    house.knowledge.on_batch(A, cache.batch(window, stored))
    assert house.belief(A) == OverlapEstimate(Overlap(8, 8, 8, 12, "events", 0.0), 8, 4, 3, recomputed_tokens=4)
    assert house.knowledge.overlap_groups(PROMPT).rest == Overlap(8, 8, 8, 12, "events", None)
    house.knowledge.on_batch(A, cache.batch(window._replace(hashes=stored.hashes[1:3])))
    assert house.overlap(A) == Overlap(12, 12, 12, 12, "events", 0.0)


@pytest.mark.parametrize(
    ("gpu", "cpu", "expected"),
    [
        (12, 0, (8, 8, 8, 12)),
        (12, 16, (8, 16, 16, 12)),
        (12, 8, (8, 8, 8, 12)),
        (0, 8, (0, 8, 8, 0)),
        (4, 0, (0, 0, 0, 4)),
    ],
)
def test_a_target_that_drafts_promises_a_block_less_than_its_gpu_holds(
    house: House, gpu: int, cpu: int, expected: tuple[int, ...]
) -> None:
    cache = house.join(A)
    tiers = (gpu, Tier.GPU), (cpu, Tier.CPU)
    house.knowledge.on_batch(A, cache.batch(*(cache.stored(IDS[:held], tier=tier) for held, tier in tiers if held)))
    for _ in range(2):  # the second time nothing is taken from the cache of estimates
        found = house.knowledge.estimate_overlaps(PROMPT, {A: 4}, frozenset(), frozenset([A]))[A]
        assert found.overlap is not None
        assert (tokens(found.overlap), found.indexed_tokens) == (expected, expected[2])
        assert tokens(house.overlap(A)) == (gpu, max(gpu, cpu), max(gpu, cpu), gpu)


def test_both_targets_in_one_answer(house: House) -> None:
    cache = house.join(A)
    house.join(B, stream=False)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    beliefs = house.knowledge.estimate_overlaps(PROMPT, {A: 4, B: 4}, frozenset())
    assert {target: belief.indexed_tokens for target, belief in beliefs.items()} == {A: 16, B: None}


def test_tiers_are_cumulative(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(
        A,
        cache.batch(
            cache.stored(IDS[:4]),
            cache.stored(IDS[:12], tier=Tier.CPU),
            cache.stored(IDS[:16], start=3, tier=Tier.DISK),
        ),
    )
    belief = house.belief(A)
    assert belief.overlap is not None
    assert tokens(belief.overlap) == (4, 12, 16, 4)
    assert belief.indexed_tokens == 16  # whatever tier it comes from, the engine reports it as cached
    assert belief.held_blocks == 1


@pytest.mark.parametrize(
    ("length", "complete", "usable"),
    [
        (15, True, 12),
        (16, True, 12),  # the 16th token is always computed, and its block with it
        (17, True, 16),
        (16, False, 16),  # media follows: the last token is another one
        (4, True, 0),
        (3, True, 0),
        (0, True, 0),
        (0, False, 0),
    ],
)
def test_the_last_token_is_always_computed(house: House, length: int, complete: bool, usable: int) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS), cache.stored(IDS, tier=Tier.CPU)))
    prompt = prompt_of(IDS[:length], complete=complete)
    belief = house.belief(A, prompt)
    assert belief.overlap is not None
    assert (tokens(belief.overlap), belief.indexed_tokens) == ((usable,) * 4, usable)
    house.join(B, stream=False)
    house.knowledge.on_first_byte(house.send(B, prompt))
    assert tokens(house.overlap(B, prompt)) == (usable,) * 4


def test_but_its_block_is_cached_for_those_who_go_on(house: House) -> None:
    house.join(A)
    house.join(B, stream=False)
    for target in (A, B):
        house.knowledge.on_first_byte(house.send(target, prompt_of(IDS[:16])))
        assert house.overlap(target).expected_tokens == 16


def test_two_block_sizes_in_one_fleet(house: House) -> None:
    small, large = house.join(A), house.join(B)
    large.size = 8
    prompt = prompt_of(IDS, 4, 8)
    house.knowledge.on_batch(A, small.batch(small.stored(IDS[:12])))
    house.knowledge.on_batch(B, large.batch(large.stored(IDS[:12])))  # one full block of 8
    assert [house.knowledge.block_tokens(target) for target in (A, B)] == [4, 8]
    beliefs = house.knowledge.estimate_overlaps(prompt, {A: 4, B: 8}, frozenset())
    assert beliefs[A] == OverlapEstimate(Overlap(12, 12, 12, 12, "events", 0.0), 12, 4, 3)
    assert beliefs[B] == OverlapEstimate(Overlap(8, 8, 8, 8, "events", 0.0), 8, 8, 1)


def test_no_belief_where_the_size_is_new(house: House) -> None:
    house.join(B)
    assert house.knowledge.estimate_overlaps(PROMPT, {B: 128}, frozenset()) == {}


def test_who_has_told_no_size_on_a_stream_heard_from_its_beginning_holds_nothing(house: House) -> None:
    house.join(A)
    house.join(B, replayable=True)
    house.knowledge.on_connected(B)  # still asking for what was before
    beliefs = house.knowledge.estimate_overlaps(PROMPT, {A: None, B: None}, frozenset())
    assert beliefs == {A: OverlapEstimate(Overlap(0, 0, 0, 0, "events", None), 0, None, 0)}
    assert house.knowledge.add_sent(A, PROMPT, beliefs[A]) is None


def test_between_two_replays_the_index_still_counts(house: House) -> None:
    cache = house.join(A, replayable=True)
    house.knowledge.on_connected(A)
    house.knowledge.on_replay_end(A, True)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:8])))
    cache.batch()  # lost on the way
    assert house.knowledge.on_batch(A, cache.batch()) is not None  # a replay is asked for
    assert house.overlap(A) == Overlap(8, 8, 8, 8, "approximate", 0.0)
    distrusted = house.belief(A, believed=False)
    assert distrusted.overlap == Overlap(0, 0, 0, 0, "approximate", 0.0)


# what is on its way


def test_a_burst_is_expected_where_its_first_went(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:4])))
    sent = house.send(A)
    assert tokens(house.overlap(A)) == (4, 4, 4, 16)
    house.knowledge.on_failure(sent)
    assert tokens(house.overlap(A)) == (4, 4, 4, 4)


def test_an_expectation_outlives_the_first_byte_by_its_time(house: House) -> None:
    house.join(A)
    sent = house.send(A)
    house.clock.advance(100.0)  # queueing
    assert house.overlap(A).expected_tokens == 16
    house.knowledge.on_first_byte(sent)
    house.clock.advance(TTL_S - 0.1)
    assert house.overlap(A).expected_tokens == 16
    house.clock.advance(0.1)
    assert house.overlap(A).expected_tokens == 0


def test_what_events_confirm_is_no_longer_expected_and_once_evicted_not_believed(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_first_byte(house.send(A))
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    assert tokens(house.overlap(A)) == (16, 16, 16, 16)
    house.knowledge.on_batch(A, cache.batch(cache.removed(IDS, start=2)))
    assert tokens(house.overlap(A)) == (8, 8, 8, 8)


def test_what_is_held_already_is_not_expected(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:8])))
    house.send(A)
    house.knowledge.on_batch(A, cache.batch(cache.removed(IDS[:8])))
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def test_what_events_will_tell_is_not_remembered_beside_them(house: House) -> None:
    house.join(A)
    house.knowledge.on_first_byte(house.send(A))
    house.clock.advance(TTL_S)
    assert tokens(house.overlap(A, believed=False)) == (0, 0, 0, 0)


# no stream, or none to trust


def test_without_a_stream_it_holds_approximately_what_it_answered(house: House) -> None:
    house.join(A, stream=False)
    assert house.belief(A) == OverlapEstimate(Overlap(0, 0, 0, 0, "approximate", None), None, 4, 0)
    sent = house.send(A)
    assert tokens(house.overlap(A)) == (0, 0, 0, 16), "on its way"
    house.knowledge.on_first_byte(sent)
    house.clock.advance(TTL_S + 1)
    assert house.belief(A) == OverlapEstimate(Overlap(16, 16, 16, 16, "approximate", None), None, 4, 4)
    house.clock.advance(APPROXIMATE_TTL_S)
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def test_what_it_refused_or_never_got_it_does_not_hold(house: House) -> None:
    house.join(A, stream=False)
    house.knowledge.on_failure(house.send(A))
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def test_a_longer_prompt_is_expected_after_what_is_approximately_there(house: House) -> None:
    house.join(A, stream=False)
    house.knowledge.on_first_byte(house.send(A, prompt_of(IDS[:9])))
    house.clock.advance(TTL_S)
    house.send(A)
    assert tokens(house.overlap(A)) == (8, 8, 8, 16)


def test_a_target_whose_promises_broke_goes_by_what_it_answered_but_its_promises_are_kept(house: House) -> None:
    cache = house.join(A)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    belief = house.belief(A, believed=False)
    assert belief == OverlapEstimate(Overlap(0, 0, 0, 0, "approximate", 0.0), 16, 4, 0)
    house.knowledge.on_first_byte(house.send(A, believed=False))
    assert tokens(house.overlap(A, believed=False)) == (16, 16, 16, 16)


def test_a_stream_that_lost_its_place_is_not_believed_until_it_found_it(house: House) -> None:
    cache = house.join(A, replayable=True)
    assert house.knowledge.on_connected(A) == 0
    first = cache.batch(cache.stored(IDS[:8]))
    house.knowledge.on_replayed(A, first)
    assert house.overlap(A).source == "approximate", "the replay is still running"
    assert house.knowledge.on_replay_end(A, complete=True) is None
    assert house.overlap(A) == Overlap(8, 8, 8, 8, "events", 0.0)

    missed = cache.batch(cache.stored(IDS[:16], start=2))
    assert house.knowledge.on_batch(A, cache.batch()) == first.seq, "a gap: replay from the last batch that we have"
    assert house.overlap(A).source == "approximate"
    assert house.belief(A).indexed_tokens == 8
    house.knowledge.on_replayed(A, first)
    house.knowledge.on_replayed(A, missed)
    assert house.knowledge.on_replay_end(A, complete=True) is None
    assert house.overlap(A) == Overlap(16, 16, 16, 16, "events", 0.0)


# joined late


def test_joined_late_nothing_is_unknown_and_something_is_known(house: House) -> None:
    cache = late(house)
    assert house.belief(A) == OverlapEstimate(None, 0, 4, 0)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:4])))
    assert tokens(house.overlap(A)) == (4, 4, 4, 4)
    assert house.belief(A, prompt_of([7] * 9)).overlap is None


def test_joined_late_what_only_slower_tiers_hold_is_known(house: House) -> None:
    cache = late(house)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS[:8], tier=Tier.CPU)))
    assert tokens(house.overlap(A)) == (0, 8, 8, 0)


def test_joined_late_what_is_expected_is_known(house: House) -> None:
    late(house)
    sent = house.send(A)
    assert tokens(house.overlap(A)) == (0, 0, 0, 16)
    house.knowledge.on_failure(sent)
    assert house.belief(A).overlap is None


def test_once_the_cache_has_turned_over_nothing_means_nothing(house: House) -> None:
    cache = late(house, capacity_blocks=6)
    other = prompt_of([7] * 9)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    assert house.belief(A, other).overlap is None, "4 of 6 blocks"
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS, tier=Tier.CPU)))
    assert house.belief(A, other).overlap is None, "copies in host memory push nothing off the GPU"
    house.knowledge.on_batch(A, cache.batch(cache.stored([9] * 8)))
    assert house.overlap(A, other) == Overlap(0, 0, 0, 0, "events", 0.0)
    told = house.knowledge.describe_stream(A)
    assert told is not None
    assert told.turned_over


def test_an_unknown_capacity_never_turns_over(house: House) -> None:
    cache = late(house, capacity_blocks=None)
    for begin in range(0, 1000, 8):
        house.knowledge.on_batch(A, cache.batch(cache.stored(list(range(begin, begin + 8)))))
    assert house.belief(A).overlap is None


# what was believed lately

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("store"), st.sampled_from([A, B]), st.integers(1, 4)),
        st.tuples(st.just("send"), st.sampled_from([A, B]), st.booleans()),
        st.tuples(st.just("clear"), st.sampled_from([A, B]), st.just(0)),
        st.tuples(st.just("rejoin"), st.sampled_from([A, B]), st.booleans()),
        st.tuples(st.just("join late"), st.sampled_from([A, B]), st.integers(1, 4)),
        st.tuples(st.just("size"), st.sampled_from([A, B]), st.integers(1, 4)),
        st.tuples(st.just("wait"), st.just(A), st.sampled_from([0.01, 0.2, 6.0])),
    ),
    max_size=14,
)
STRANGE = prompt_of([7] * 12)
AKIN = prompt_of([*IDS[:8], *[7] * 9])  # begins as PROMPT does


@given(STEPS, st.sets(st.sampled_from([A, B])))
@examples(300)
def test_what_is_kept_of_earlier_beliefs_changes_none(
    steps: Sequence[tuple[str, TargetId, Any]], distrusted: set[TargetId]
) -> None:
    house = House()
    caches = {target: house.join(target) for target in (A, B)}
    for word, target, amount in steps:
        cache = caches[target]
        if word == "store":
            house.knowledge.on_batch(target, cache.batch(cache.stored(IDS[: amount * 4])))
        elif word == "send":
            house.send(target, AKIN if amount else PROMPT)
        elif word == "clear":
            house.knowledge.on_batch(target, cache.batch(BlocksCleared()))
        elif word == "rejoin":
            caches[target] = house.join(target, stream=amount)
        elif word == "join late":
            house.knowledge.join(target, "m", stream=True, replayable=False)
            cache = caches[target] = Cache()
            cache.seq = amount
            house.knowledge.on_batch(target, cache.batch(cache.stored(IDS[:4])))
        elif word == "size":
            house.knowledge.set_capacity(target, amount)
        else:
            house.clock.advance(amount)
        for prompt in (STRANGE, PROMPT, AKIN, STRANGE):
            told = house.knowledge.estimate_overlaps(prompt, {A: 4, B: 4}, frozenset(distrusted))
            right = house.afresh().estimate(prompt, {A: 4, B: 4}, distrusted, (), house.clock.now())
            for name, belief in told.items():
                assert ageless(belief) == ageless(right[name])
                assert age_s(belief) == pytest.approx(age_s(right[name]), abs=CACHE_TTL_S)


def ageless(belief: OverlapEstimate) -> OverlapEstimate:
    return belief if belief.overlap is None else belief._replace(overlap=belief.overlap._replace(age_s=None))


def age_s(belief: OverlapEstimate) -> float | None:
    return None if belief.overlap is None else belief.overlap.age_s
