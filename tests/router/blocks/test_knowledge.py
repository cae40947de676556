"""What is believed of targets, as stories: blocks of 4 tokens unless said otherwise."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.blocks.events import Cleared, Pooled, Stored, TargetId, Tier
from router.blocks.expected import Approximate, Expected
from router.blocks.index import Index
from router.blocks.knowledge import LATELY_S, Belief, Knowledge, Sent
from router.blocks.known import Known
from router.clock import ManualClock
from scorers.contract import Overlap
from tests.fakes.caches import RING, Cache, prompt_of

A, B = TargetId("a/0"), TargetId("b/0")
TTL_S, APPROXIMATE_TTL_S = 5.0, 600.0
IDS = list(range(100, 118))  # 18 tokens: 4 full blocks and a bit
PROMPT = prompt_of(IDS)


class House:
    """Knowledge of `A` and `B` (with a trusted stream each, unless told otherwise), and what one asks of it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0, wall=1000.0)
        self.witnessed: list[tuple[str, Stored | Pooled]] = []
        self.knowledge = Knowledge(
            Index(RING), Expected(TTL_S), Approximate(10_000, APPROXIMATE_TTL_S), self.clock, witness=self
        )

    def stored(self, model: str, event: Stored) -> None:
        self.witnessed.append((model, event))

    def pooled(self, model: str, event: Pooled) -> None:
        self.witnessed.append((model, event))

    def join(self, target: TargetId, *, stream: bool = True, replayable: bool = False) -> Cache:
        self.knowledge.join(target, "m", stream=stream, replayable=replayable)
        cache = Cache()
        if stream and not replayable:
            self.knowledge.heard(target, cache.batch())  # the first batch that it ever made: nothing was missed
        return cache

    def belief(self, target: TargetId, prompt: Known = PROMPT, size: int = 4, *, believed: bool = True) -> Belief:
        distrusted = frozenset() if believed else frozenset([target])
        return self.knowledge.beliefs(prompt, {target: size}, distrusted)[target]

    def overlap(self, target: TargetId, prompt: Known = PROMPT, **asked: Any) -> Overlap:
        overlap = self.belief(target, prompt, **asked).overlap
        assert overlap is not None
        return overlap

    def send(self, target: TargetId, prompt: Known = PROMPT, **asked: Any) -> Sent:
        return self.knowledge.sent(target, prompt, self.belief(target, prompt, **asked))


@pytest.fixture
def house() -> House:
    return House()


def tokens(overlap: Overlap) -> tuple[int, int, int, int]:
    return overlap[:4]


# a stream that can be trusted


def test_a_trusted_stream_is_the_truth(house: House) -> None:
    cache = house.join(A)
    house.join(B)
    assert house.belief(A) == Belief(Overlap(0, 0, 0, 0, "events", 0.0), 0, 4, 0)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS[:12])))
    house.clock.advance(2.5)
    assert house.belief(A) == Belief(Overlap(12, 12, 12, 12, "events", 2.5), 12, 4, 3)
    assert house.overlap(B) == Overlap(0, 0, 0, 0, "events", 2.5)


def test_ages_are_whole_milliseconds(house: House) -> None:
    house.join(A)
    house.clock.advance(1.0 / 3)
    assert repr(house.overlap(A).age_s) == "0.333"
    house.clock.advance(1.0 / 3)
    assert repr(house.overlap(A).age_s) == "0.667"


def test_both_targets_in_one_answer(house: House) -> None:
    cache = house.join(A)
    house.join(B, stream=False)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    beliefs = house.knowledge.beliefs(PROMPT, {A: 4, B: 4}, frozenset())
    assert {target: belief.promised_tokens for target, belief in beliefs.items()} == {A: 16, B: None}


def test_tiers_are_cumulative(house: House) -> None:
    cache = house.join(A)
    house.knowledge.heard(
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
    assert belief.promised_tokens == 16  # whatever tier it comes from, the engine reports it as cached
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
    house.knowledge.heard(A, cache.batch(cache.stored(IDS), cache.stored(IDS, tier=Tier.CPU)))
    prompt = prompt_of(IDS[:length], complete=complete)
    belief = house.belief(A, prompt)
    assert belief.overlap is not None
    assert (tokens(belief.overlap), belief.promised_tokens) == ((usable,) * 4, usable)
    house.join(B, stream=False)
    house.knowledge.began(house.send(B, prompt))
    assert tokens(house.overlap(B, prompt)) == (usable,) * 4


def test_but_its_block_is_cached_for_those_who_go_on(house: House) -> None:
    house.join(A)
    house.join(B, stream=False)
    for target in (A, B):
        house.knowledge.began(house.send(target, prompt_of(IDS[:16])))
        assert house.overlap(target).expected_tokens == 16


def test_two_block_sizes_in_one_fleet(house: House) -> None:
    small, large = house.join(A), house.join(B)
    large.size = 8
    prompt = prompt_of(IDS, 4, 8)
    house.knowledge.heard(A, small.batch(small.stored(IDS[:12])))
    house.knowledge.heard(B, large.batch(large.stored(IDS[:12])))  # one full block of 8
    assert [house.knowledge.block_tokens(target) for target in (A, B)] == [4, 8]
    beliefs = house.knowledge.beliefs(prompt, {A: 4, B: 8}, frozenset())
    assert beliefs[A] == Belief(Overlap(12, 12, 12, 12, "events", 0.0), 12, 4, 3)
    assert beliefs[B] == Belief(Overlap(8, 8, 8, 8, "events", 0.0), 8, 8, 1)


def test_no_belief_where_the_size_is_new(house: House) -> None:
    house.join(B)
    assert house.knowledge.beliefs(PROMPT, {B: 128}, frozenset()) == {}


def test_who_has_told_no_size_on_a_stream_heard_from_its_beginning_holds_nothing(house: House) -> None:
    house.join(A)
    house.join(B, replayable=True)
    house.knowledge.stream_connected(B)  # still asking for what was before
    beliefs = house.knowledge.beliefs(PROMPT, {A: None, B: None}, frozenset())
    assert beliefs == {A: Belief(Overlap(0, 0, 0, 0, "events", None), 0, None, 0)}
    assert house.knowledge.sent(A, PROMPT, beliefs[A]) is None


def test_between_two_replays_the_index_still_counts(house: House) -> None:
    cache = house.join(A, replayable=True)
    house.knowledge.stream_connected(A)
    house.knowledge.replay_ended(A, True)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS[:8])))
    cache.batch()  # lost on the way
    assert house.knowledge.heard(A, cache.batch()) is not None  # a replay is asked for
    assert house.overlap(A) == Overlap(8, 8, 8, 8, "approximate", 0.0)
    distrusted = house.belief(A, believed=False)
    assert distrusted.overlap == Overlap(0, 0, 0, 0, "approximate", 0.0)


# all that a target holds


def test_a_trusted_stream_tells_all_that_a_target_holds(house: House) -> None:
    cache = house.join(A)
    assert house.knowledge.held_tokens(A, None, True) == 0, "nothing, and that is known"
    stored = cache.stored(IDS[:12]), cache.stored(IDS[:8], tier=Tier.CPU), cache.stored([7] * 8)
    house.knowledge.heard(A, cache.batch(*stored))
    assert house.knowledge.held_tokens(A, 4, True) == 4 * (3 + 2), "each block once, of whatever prompt"
    assert house.knowledge.held_tokens(A, None, True) is None
    house.send(A, prompt_of([9] * 40))
    assert house.knowledge.held_tokens(A, 4, True) == 20, "what is on its way is not there yet"


def test_joined_late_no_block_is_unknown_and_some_are_known(house: House) -> None:
    cache = late(house, capacity_blocks=6)
    assert house.knowledge.held_tokens(A, 4, True) is None
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    assert house.knowledge.held_tokens(A, 4, True) == 16
    house.knowledge.heard(A, cache.batch(cache.stored([9] * 8), cache.removed([9] * 8), cache.removed(IDS)))
    assert house.knowledge.held_tokens(A, 4, True) == 0, "all it can hold was announced since, and has left"


def test_without_a_stream_to_believe_it_holds_what_was_sent_there(house: House) -> None:
    house.join(B, stream=False)
    assert house.knowledge.held_tokens(B, 4, True) == 0
    assert house.knowledge.held_tokens(B, None, True) is None
    house.knowledge.began(house.send(B))
    house.knowledge.began(house.send(B, prompt_of([*IDS[:8], *[7] * 9])))
    assert house.knowledge.held_tokens(B, 4, True) == 4 * (4 + 2), "the first two blocks are shared"
    house.clock.advance(APPROXIMATE_TTL_S)
    assert house.knowledge.held_tokens(B, 4, True) == 0

    cache = house.join(A)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    assert house.knowledge.held_tokens(A, 4, False) == 0, "its promises broke"
    assert house.knowledge.held_tokens(TargetId("never/0"), 4, True) is None


def test_between_two_replays_what_was_held_still_counts(house: House) -> None:
    cache = house.join(A, replayable=True)
    house.knowledge.stream_connected(A)
    house.knowledge.replay_ended(A, True)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS[:8])))
    cache.batch()  # lost on the way
    assert house.knowledge.heard(A, cache.batch()) is not None
    assert house.knowledge.held_tokens(A, 4, True) == 8
    assert house.knowledge.held_tokens(A, 4, False) == 0


# what is on its way


def test_a_burst_is_expected_where_its_first_went(house: House) -> None:
    cache = house.join(A)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS[:4])))
    sent = house.send(A)
    assert tokens(house.overlap(A)) == (4, 4, 4, 16)
    house.knowledge.failed(sent)
    assert tokens(house.overlap(A)) == (4, 4, 4, 4)


def test_an_expectation_outlives_the_first_byte_by_its_time(house: House) -> None:
    house.join(A)
    sent = house.send(A)
    house.clock.advance(100.0)  # queueing
    assert house.overlap(A).expected_tokens == 16
    house.knowledge.began(sent)
    house.clock.advance(TTL_S - 0.1)
    assert house.overlap(A).expected_tokens == 16
    house.clock.advance(0.1)
    assert house.overlap(A).expected_tokens == 0


def test_what_events_confirm_is_no_longer_expected_and_once_evicted_not_believed(house: House) -> None:
    cache = house.join(A)
    house.knowledge.began(house.send(A))
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    assert tokens(house.overlap(A)) == (16, 16, 16, 16)
    house.knowledge.heard(A, cache.batch(cache.removed(IDS, start=2)))
    assert tokens(house.overlap(A)) == (8, 8, 8, 8)


def test_what_is_held_already_is_not_expected(house: House) -> None:
    cache = house.join(A)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS[:8])))
    house.send(A)
    house.knowledge.heard(A, cache.batch(cache.removed(IDS[:8])))
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def test_what_events_will_tell_is_not_remembered_beside_them(house: House) -> None:
    house.join(A)
    house.knowledge.began(house.send(A))
    house.clock.advance(TTL_S)
    assert tokens(house.overlap(A, believed=False)) == (0, 0, 0, 0)


# no stream, or none to trust


def test_without_a_stream_it_holds_approximately_what_it_answered(house: House) -> None:
    house.join(A, stream=False)
    assert house.belief(A) == Belief(Overlap(0, 0, 0, 0, "approximate", None), None, 4, 0)
    sent = house.send(A)
    assert tokens(house.overlap(A)) == (0, 0, 0, 16), "on its way"
    house.knowledge.began(sent)
    house.clock.advance(TTL_S + 1)
    assert house.belief(A) == Belief(Overlap(16, 16, 16, 16, "approximate", None), None, 4, 4)
    house.clock.advance(APPROXIMATE_TTL_S)
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def test_what_it_refused_or_never_got_it_does_not_hold(house: House) -> None:
    house.join(A, stream=False)
    house.knowledge.failed(house.send(A))
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def test_a_longer_prompt_is_expected_after_what_is_approximately_there(house: House) -> None:
    house.join(A, stream=False)
    house.knowledge.began(house.send(A, prompt_of(IDS[:9])))
    house.clock.advance(TTL_S)
    house.send(A)
    assert tokens(house.overlap(A)) == (8, 8, 8, 16)


def test_a_target_whose_promises_broke_goes_by_what_it_answered_but_its_promises_are_kept(house: House) -> None:
    cache = house.join(A)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    belief = house.belief(A, believed=False)
    assert belief == Belief(Overlap(0, 0, 0, 0, "approximate", 0.0), 16, 4, 0)
    house.knowledge.began(house.send(A, believed=False))
    assert tokens(house.overlap(A, believed=False)) == (16, 16, 16, 16)


def test_a_stream_that_lost_its_place_is_not_believed_until_it_found_it(house: House) -> None:
    cache = house.join(A, replayable=True)
    assert house.knowledge.stream_connected(A) == 0
    first = cache.batch(cache.stored(IDS[:8]))
    house.knowledge.replayed(A, first)
    assert house.overlap(A).source == "approximate", "the replay is still running"
    assert house.knowledge.replay_ended(A, complete=True) is None
    assert house.overlap(A) == Overlap(8, 8, 8, 8, "events", 0.0)

    missed = cache.batch(cache.stored(IDS[:16], start=2))
    assert house.knowledge.heard(A, cache.batch()) == first.seq, "a gap: replay from the last batch that we have"
    assert house.overlap(A).source == "approximate"
    assert house.belief(A).promised_tokens == 8
    house.knowledge.replayed(A, first)
    house.knowledge.replayed(A, missed)
    assert house.knowledge.replay_ended(A, complete=True) is None
    assert house.overlap(A) == Overlap(16, 16, 16, 16, "events", 0.0)


# joined late, forgotten, restarted


def late(house: House, capacity_blocks: int | None = 6) -> Cache:
    cache = house.join(A, stream=False)
    house.knowledge.join(A, "m", stream=True, replayable=False)
    cache.seq = 41
    house.knowledge.heard(A, cache.batch())
    if capacity_blocks is not None:
        house.knowledge.holds_at_most(A, capacity_blocks)
    return cache


def test_joined_late_nothing_is_unknown_and_something_is_known(house: House) -> None:
    cache = late(house)
    assert house.belief(A) == Belief(None, 0, 4, 0)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS[:4])))
    assert tokens(house.overlap(A)) == (4, 4, 4, 4)
    assert house.belief(A, prompt_of([7] * 9)).overlap is None


def test_joined_late_what_only_slower_tiers_hold_is_known(house: House) -> None:
    cache = late(house)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS[:8], tier=Tier.CPU)))
    assert tokens(house.overlap(A)) == (0, 8, 8, 0)


def test_joined_late_what_is_expected_is_known(house: House) -> None:
    late(house)
    sent = house.send(A)
    assert tokens(house.overlap(A)) == (0, 0, 0, 16)
    house.knowledge.failed(sent)
    assert house.belief(A).overlap is None


def test_once_the_cache_has_turned_over_nothing_means_nothing(house: House) -> None:
    cache = late(house, capacity_blocks=6)
    other = prompt_of([7] * 9)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    assert house.belief(A, other).overlap is None, "4 of 6 blocks"
    house.knowledge.heard(A, cache.batch(cache.stored(IDS, tier=Tier.CPU)))
    assert house.belief(A, other).overlap is None, "copies in host memory push nothing off the GPU"
    house.knowledge.heard(A, cache.batch(cache.stored([9] * 8)))
    assert house.overlap(A, other) == Overlap(0, 0, 0, 0, "events", 0.0)
    told = house.knowledge.stream(A)
    assert told is not None
    assert told.turned_over


def test_an_unknown_capacity_never_turns_over(house: House) -> None:
    cache = late(house, capacity_blocks=None)
    for begin in range(0, 1000, 8):
        house.knowledge.heard(A, cache.batch(cache.stored(list(range(begin, begin + 8)))))
    assert house.belief(A).overlap is None


def test_forgetting_takes_everything_with_it(house: House) -> None:
    cache = house.join(A)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS[:8])))
    house.knowledge.began(house.send(A, prompt_of([7] * 9), believed=False))
    house.send(A)
    cache.seq += 1
    house.knowledge.heard(A, cache.batch())  # a gap, and no replay to close it
    assert house.belief(A) == Belief(None, 0, 4, 0)
    assert tokens(house.overlap(A, prompt_of([7] * 9), believed=False)) == (0, 0, 0, 0)


def test_forgetting_begins_the_turnover_again(house: House) -> None:
    cache = late(house, capacity_blocks=4)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    cache.seq += 1
    house.knowledge.heard(A, cache.batch(cache.stored(IDS[:4])))
    assert house.belief(A, prompt_of([7] * 9)).overlap is None


def test_a_restarted_engine_holds_nothing_and_that_is_known(house: House) -> None:
    cache = house.join(A)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    cache.restart()
    house.knowledge.heard(A, cache.batch())
    assert house.overlap(A) == Overlap(0, 0, 0, 0, "events", 0.0)
    told = house.knowledge.stream(A)
    assert told is not None
    assert told.book is not None
    assert told.book.restarts == 1


def test_a_cleared_cache_holds_nothing_by_any_account(house: House) -> None:
    cache = house.join(A)
    house.knowledge.began(house.send(A, believed=False))
    house.knowledge.heard(A, cache.batch(cache.stored(IDS), cache.cleared()))
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)
    assert tokens(house.overlap(A, believed=False)) == (0, 0, 0, 0)


def test_joining_again_and_leaving_forget(house: House) -> None:
    cache = house.join(A)
    house.send(A)
    house.knowledge.heard(A, cache.batch(cache.stored([7] * 8)))
    house.join(A)
    assert tokens(house.overlap(A, prompt_of([7] * 9))) == (0, 0, 0, 0)
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)
    house.knowledge.began(house.send(A, believed=False))
    house.knowledge.leave(A)
    house.join(A, stream=False)
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def after_a_restart(house: House, *targets: TargetId) -> House:
    """Another router with what this one would have saved."""
    fresh = House()
    for target in targets:
        saved = house.knowledge.saved(target)
        assert saved is not None
        fresh.knowledge.restore(saved)
    return fresh


def test_after_a_restart_what_was_held_is_likely_until_the_stream_confirms_it(house: House) -> None:
    last = house.join(A).batch()._replace(events=[Cache().stored(IDS)])
    house.knowledge.heard(A, last)
    for same_process in (True, False):
        fresh = after_a_restart(house, A)
        fresh.knowledge.join(A, "m", stream=True, replayable=True)
        assert fresh.overlap(A) == Overlap(16, 16, 16, 16, "approximate", None)
        assert fresh.knowledge.block_tokens(A) == 4
        assert fresh.knowledge.stream_connected(A) == last.seq, "the last batch shows who answers"
        fresh.knowledge.replayed(A, last if same_process else last._replace(wall_s=77.0, events=[]))
        asks = fresh.knowledge.replay_ended(A, True)
        assert asks == (None if same_process else 0)
        held = 16 if same_process else 0
        assert tokens(fresh.overlap(A)) == (held, held, held, held)


def test_what_turned_over_before_a_restart_has_turned_over(house: House) -> None:
    cache = late(house, capacity_blocks=4)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    fresh = after_a_restart(house, A)
    fresh.knowledge.join(A, "m", stream=True, replayable=True)
    fresh.knowledge.holds_at_most(A, 4)
    told = fresh.knowledge.stream(A)
    assert told is not None
    assert told.turned_over
    assert told.book is not None
    assert told.book.joined_late


@pytest.mark.parametrize(("model", "stream"), [("another", True), ("m", False)])
def test_a_target_that_changed_over_a_restart_begins_anew(house: House, model: str, stream: bool) -> None:
    cache = house.join(A)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    fresh = after_a_restart(house, A)
    fresh.knowledge.join(A, model, stream=stream, replayable=True)
    assert fresh.knowledge.block_tokens(A) is None
    fresh.knowledge.join(A, "m", stream=True, replayable=True)
    assert fresh.knowledge.block_tokens(A) is None, "nor later"


def test_who_has_not_come_back_is_saved_again_until_given_up(house: House) -> None:
    cache = house.join(A)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS)))
    house.join(B, stream=False)
    assert house.knowledge.saveable() == [A]
    assert house.knowledge.saved(B) is house.knowledge.saved(TargetId("never/0")) is None
    fresh = after_a_restart(house, A)
    assert fresh.knowledge.saveable() == [A]
    assert fresh.knowledge.saved(A) == house.knowledge.saved(A)
    fresh.knowledge.give_up()
    assert fresh.knowledge.saveable() == []
    fresh.knowledge.join(A, "m", stream=True, replayable=True)
    assert fresh.knowledge.block_tokens(A) is None


def test_a_request_may_end_after_its_target_left(house: House) -> None:
    house.join(A)
    first, second = house.send(A), house.send(A)
    house.knowledge.leave(A)
    house.knowledge.began(first)
    house.knowledge.failed(second)
    house.join(A)
    assert tokens(house.overlap(A)) == (0, 0, 0, 0)


def test_what_comes_for_a_target_that_left_is_ignored(house: House) -> None:
    cache = house.join(A)
    house.knowledge.leave(A)
    knowledge = house.knowledge
    assert knowledge.heard(A, cache.batch(cache.stored(IDS))) is None
    knowledge.replayed(A, cache.batch())
    knowledge.malformed(A, "odd")
    knowledge.holds_at_most(A, 5)
    assert knowledge.stream_connected(A) is None
    assert knowledge.replay_ended(A, complete=True) is None
    assert knowledge.stream(A) is None
    assert knowledge.block_tokens(A) is None


def test_what_people_may_know_of_a_stream(house: House) -> None:
    cache = house.join(A)
    house.join(B, stream=False)
    house.knowledge.heard(A, cache.batch(cache.stored(IDS), skipped={"group": 2}))
    house.knowledge.heard(A, cache.batch(cache.stored(IDS, tier=Tier.CPU), skipped={"group": 1, "medium": 1}))
    house.knowledge.malformed(A, "not msgpack")
    told = house.knowledge.stream(A)
    assert told is not None
    assert told.book is not None
    assert (told.batches, told.malformed, dict(told.skipped)) == (3, 1, {"group": 3, "medium": 1})
    assert told.stats.blocks == (4, 4, 0)
    assert told.book.events == 2
    silent = house.knowledge.stream(B)
    assert silent is not None
    assert silent.book is None


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


def take(house: House, cache: Cache, step: tuple[Any, ...], open_: list[Sent]) -> None:
    match step:
        case ("stored", length, tier):
            house.knowledge.heard(A, cache.batch(*([cache.stored(IDS[:length], tier=tier)] if length >= 4 else [])))
        case ("removed", length, tier):
            house.knowledge.heard(A, cache.batch(cache.removed(IDS[:length], tier=tier)))
        case ("sent", length, believed):
            open_.append(house.send(A, prompt_of(IDS[:length]), believed=believed))
        case ("began",) if open_:
            house.knowledge.began(open_.pop(0))
        case ("failed",) if open_:
            house.knowledge.failed(open_.pop(0))
        case ("cleared",):
            house.knowledge.heard(A, cache.batch(cache.cleared()))
        case ("gap",):
            cache.seq += 1
        case ("restart",):
            cache.restart()
        case ("wait",):
            house.clock.advance(TTL_S / 2)
        case ("connected",):
            house.knowledge.stream_connected(A)


def check(belief: Belief, length: int) -> None:
    if (overlap := belief.overlap) is not None:
        gpu, cpu, disk, expected = tokens(overlap)
        assert 0 <= gpu <= cpu <= disk <= max(0, length - 1) // 4 * 4
        assert gpu <= expected <= max(0, length - 1) // 4 * 4
        assert {count % 4 for count in (gpu, cpu, disk, expected)} == {0}
        assert belief.held_blocks * 4 == gpu
        if overlap.source == "events":
            assert belief.promised_tokens == disk
        else:
            assert gpu == disk


@settings(deadline=None)
@given(STEPS, LENGTHS)
def test_whatever_happens_beliefs_are_what_the_contract_says(steps: Sequence[tuple[Any, ...]], length: int) -> None:
    house = House()
    cache = house.join(A)
    prompt = prompt_of(IDS[:length])
    open_: list[Sent] = []
    for step in steps:
        take(house, cache, step, open_)
        for believed in (True, False):
            check(house.belief(A, prompt, believed=believed), length)
    for number, sent in enumerate(open_):
        (house.knowledge.began if number % 2 else house.knowledge.failed)(sent)
    house.clock.advance(TTL_S)
    for believed in (True, False):
        overlap = house.belief(A, prompt, believed=believed).overlap
        assert overlap is None or overlap.expected_tokens == overlap.gpu_tokens, "nothing is expected for ever"


def test_the_pool_sees_the_roots_and_what_was_put_into_it(house: House) -> None:
    cache = house.join(A)
    root, rest = cache.stored(IDS[:8]), cache.stored(IDS, start=2)
    on_host = cache.stored(IDS[:8], tier=Tier.CPU)
    pooled = Pooled(cache.hashes(IDS)[:1], None, array("I", IDS[:4]), 4)
    house.knowledge.heard(A, cache.batch(root, rest, on_host, pooled))
    assert house.witnessed == [("m", root), ("m", pooled)]
    assert house.overlap(A).gpu_tokens == 16, "what went into the pool is not held twice"


def test_nobody_need_witness() -> None:
    clock = ManualClock(1000.0, wall=1000.0)
    knowledge = Knowledge(Index(RING), Expected(TTL_S), Approximate(10_000, APPROXIMATE_TTL_S), clock)
    knowledge.join(A, "m", stream=True, replayable=False)
    cache = Cache()
    pooled = Pooled(cache.hashes(IDS)[:1], None, array("I", IDS[:4]), 4)
    knowledge.heard(A, cache.batch(cache.stored(IDS), pooled))
    assert tokens(knowledge.beliefs(PROMPT, {A: 4}, frozenset())[A].overlap) == (16, 16, 16, 16)


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
@settings(max_examples=300, deadline=None)
def test_what_is_kept_of_earlier_beliefs_changes_none(
    steps: Sequence[tuple[str, TargetId, Any]], distrusted: set[TargetId]
) -> None:
    house = House()
    caches = {target: house.join(target) for target in (A, B)}
    for word, target, amount in steps:
        cache = caches[target]
        if word == "store":
            house.knowledge.heard(target, cache.batch(cache.stored(IDS[: amount * 4])))
        elif word == "send":
            house.send(target, AKIN if amount else PROMPT)
        elif word == "clear":
            house.knowledge.heard(target, cache.batch(Cleared()))
        elif word == "rejoin":
            caches[target] = house.join(target, stream=amount)
        elif word == "join late":
            house.knowledge.join(target, "m", stream=True, replayable=False)
            cache = caches[target] = Cache()
            cache.seq = amount
            house.knowledge.heard(target, cache.batch(cache.stored(IDS[:4])))
        elif word == "size":
            house.knowledge.holds_at_most(target, amount)
        else:
            house.clock.advance(amount)
        for prompt in (STRANGE, PROMPT, AKIN, STRANGE):
            told = house.knowledge.beliefs(prompt, {A: 4, B: 4}, frozenset(distrusted))
            kept, house.knowledge._lately = house.knowledge._lately, {}
            right = house.knowledge.beliefs(prompt, {A: 4, B: 4}, frozenset(distrusted))
            house.knowledge._lately = kept
            for name, belief in told.items():
                assert ageless(belief) == ageless(right[name])
                assert age_s(belief) == pytest.approx(age_s(right[name]), abs=LATELY_S)


def ageless(belief: Belief) -> Belief:
    return belief if belief.overlap is None else belief._replace(overlap=belief.overlap._replace(age_s=None))


def age_s(belief: Belief) -> float | None:
    return None if belief.overlap is None else belief.overlap.age_s
