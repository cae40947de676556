"""When a stream's word is the whole truth."""

from __future__ import annotations

from router.kvcache.event_sequencer import EventSequencer, TargetCacheState
from router.kvcache.events import EventBatch


def story(*, stream: bool = True, joined_late: bool = False) -> TargetCacheState:
    """After the first batch of its engine, or after a later one that was the first to be heard."""
    story = TargetCacheState("m")
    if stream:
        story.sequencer = EventSequencer(replayable=False)
        story.sequencer.on_live(batch(41 if joined_late else 0), 0.0, 0.0)
        assert (story.sequencer.trusted, story.sequencer.joined_late) == (True, joined_late)
    return story


def batch(seq: int, **skipped: int) -> EventBatch:
    return EventBatch(seq, 0.0, None, [], skipped)


def test_without_a_stream_nothing_is_sure() -> None:
    assert not story(stream=False).certain


def test_a_stream_heard_from_its_beginning_is_sure_until_it_loses_its_place() -> None:
    its = story()
    assert its.certain
    assert its.sequencer is not None
    its.sequencer.on_connected(1.0)
    assert not its.certain


def test_one_joined_late_is_sure_when_as_many_blocks_were_stored_as_fit() -> None:
    its = story(joined_late=True)
    its.stored_blocks = 5
    assert not its.turned_over, "nobody knows how many fit"
    its.capacity_blocks = 6
    assert (its.turned_over, its.certain) == (False, False)
    its.stored_blocks = 6
    assert (its.turned_over, its.certain) == (True, True)


def test_what_was_skipped_is_counted_over_all_batches() -> None:
    its = story()
    its.count(batch(1, strange=2))
    its.count(batch(2, strange=1, odd=1))
    assert (its.batches, its.skipped) == (2, {"strange": 3, "odd": 1})
