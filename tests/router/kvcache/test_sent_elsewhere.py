"""Blocks that other routers sent to targets count until events tell of them, or for a while."""

from __future__ import annotations

from router.kvcache.events import TargetId
from router.kvcache.sent_elsewhere import pack_keys, unpack_keys
from tests.fakes.caches import Cache
from tests.router.kvcache.house import IDS, PROMPT, TTL_S, A, B, House

KEYS = PROMPT.keys[4]


def overlaps(house: House) -> dict[TargetId, tuple[int, int]]:
    """Tokens held and expected of the prompt, by target."""
    found = house.knowledge.estimate_overlaps(PROMPT, {A: 4, B: 4}, frozenset())
    return {
        target: (estimate.overlap.gpu_tokens, estimate.overlap.expected_tokens)
        for target, estimate in found.items()
        if estimate.overlap is not None
    }


def two_streams(house: House) -> Cache:
    """Both targets have a trusted stream, and hold nothing of the prompt."""
    cache = Cache()
    for target in (A, B):
        house.knowledge.join(target, "m", stream=True, replayable=False)
    first = cache.batch(cache.stored([9] * 8))
    for target in (A, B):
        house.knowledge.on_batch(target, first)
    return cache


def test_they_are_expected_there_and_only_there_for_a_while() -> None:
    house = House()
    two_streams(house)
    house.knowledge.elsewhere.expect(A, unpack_keys(pack_keys(KEYS)))
    assert overlaps(house) == {A: (0, 16), B: (0, 0)}
    house.clock.advance(TTL_S + 0.1)
    assert overlaps(house) == {A: (0, 0), B: (0, 0)}


def test_what_events_have_announced_is_not_expected_once_more() -> None:
    house = House()
    cache = two_streams(house)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    house.knowledge.elsewhere.expect(A, KEYS)  # it was slower than the events
    house.knowledge.on_batch(A, cache.batch(cache.removed(IDS)))
    assert overlaps(house)[A] == (0, 0)


def test_an_event_ends_the_expectation() -> None:
    house = House()
    cache = two_streams(house)
    house.knowledge.elsewhere.expect(A, KEYS)
    house.knowledge.on_batch(A, cache.batch(cache.stored(IDS)))
    house.knowledge.on_batch(A, cache.batch(cache.removed(IDS)))
    assert overlaps(house)[A] == (0, 0)


def test_what_a_target_without_events_computed_counts_as_if_it_had_been_sent_from_here() -> None:
    house = House()
    for target in (A, B):
        house.knowledge.join(target, "m", stream=False, replayable=False)
    house.knowledge.elsewhere.add_computed(A, KEYS)
    house.clock.advance(TTL_S + 0.1)
    assert overlaps(house) == {A: (16, 16), B: (0, 0)}


def test_an_unknown_target_and_bytes_that_are_no_keys_leave_nothing() -> None:
    house = House()
    for target in (A, B):
        house.knowledge.leave(target)
    house.knowledge.elsewhere.expect(A, KEYS)
    house.knowledge.elsewhere.add_computed(A, KEYS)
    for target in (A, B):
        house.knowledge.join(target, "m", stream=False, replayable=False)
    house.knowledge.elsewhere.expect(A, unpack_keys(b"1234567"))
    assert overlaps(house) == {A: (0, 0), B: (0, 0)}
