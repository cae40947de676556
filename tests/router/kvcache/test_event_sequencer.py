"""Event stories. An engine here is a list of batches and a replay buffer; `Reader` plays the feed's part."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache import event_sequencer
from router.kvcache.event_sequencer import UNANNOUNCED, ApplyBatch, EventSequencer, ForgetTarget, RequestReplay, Step
from router.kvcache.events import BlocksCleared, BlocksRemoved, EngineHash, Event, EventBatch, Tier
from tests.suites.properties import examples


def batch(seq: int, born: float = 100.0, events: list[Event] | None = None) -> EventBatch:
    """The `seq`-th batch of a process that started at `born`: one second apart, named by its hash."""
    named: list[Event] = [BlocksRemoved([EngineHash(int(born) * 1000 + seq)], Tier.GPU, 0)]
    return EventBatch(seq, born + seq, 0, named if events is None else events, {})


def process(count: int, born: float = 100.0, start: int = 0) -> list[EventBatch]:
    return [batch(seq, born) for seq in range(start, count)]


class Reader:
    """Does what the book asks; `known` is what an index would have been told since the last Forget."""

    def __init__(self, replayable: bool = True) -> None:
        self.book = EventSequencer(replayable)
        self.known: list[Event] = []
        self.forgets = 0
        self.asked: int | None = None
        self.now = 0.0

    def take(self, steps: Sequence[Step]) -> None:
        for step in steps:
            match step:
                case ApplyBatch(events):
                    self.known += events
                case ForgetTarget():
                    self.known.clear()
                    self.forgets += 1
                case RequestReplay(start_seq):
                    assert self.asked is None, "one replay at a time"
                    self.asked = start_seq

    def connect(self) -> None:
        self.take(self.book.on_connected(self.now))

    def live(self, *batches: EventBatch) -> None:
        for one in batches:
            self.take(self.book.on_live(one, self.now, 1000.0))

    def replay(self, *batches: EventBatch, complete: bool = True) -> None:
        """The engine's buffer holds `batches`; the replay that was asked for runs until another replaces it, or to its
        end.
        """
        assert self.asked is not None
        start, self.asked = self.asked, None
        for one in batches:
            if one.seq >= start:
                self.take(self.book.on_replayed(one, self.now))
                if self.asked is not None:
                    return
        self.take(self.book.on_replay_end(complete, self.now))

    def knows(self, *batches: EventBatch) -> bool:
        return self.known == [event for one in batches for event in one.events]

    @property
    def settled(self) -> bool:
        return self.book.trusted and self.asked is None


def following(count: int = 3) -> Reader:
    """A reader that has followed a process from its start."""
    reader = Reader()
    reader.connect()
    reader.replay()
    reader.live(*process(count))
    assert reader.settled
    return reader


def test_a_fresh_engine_has_nothing_to_replay_and_is_trusted() -> None:
    reader = Reader()
    assert reader.book.state == "new"
    reader.connect()
    assert reader.asked == 0
    assert not reader.book.trusted
    reader.replay()
    assert reader.settled
    reader.live(*process(3))
    assert reader.knows(*process(3))
    assert (reader.book.last_seq, reader.book.joined_late, reader.book.events) == (2, False, 3)


def test_joined_late_and_the_replay_reaches_back() -> None:
    reader = Reader()
    reader.connect()
    reader.replay(*process(50))
    assert reader.settled
    assert reader.knows(*process(50))
    assert not reader.book.joined_late
    assert reader.forgets == 0


def test_joined_late_and_the_buffer_has_moved_on() -> None:
    reader = Reader()
    reader.connect()
    reader.replay(*process(50, start=20))
    assert reader.settled
    assert reader.knows(*process(50, start=20))
    assert reader.book.joined_late


def test_a_first_live_batch_beyond_zero_asks_for_what_was_before() -> None:
    reader = Reader()
    reader.live(batch(5))
    assert reader.asked == 0
    reader.replay(*process(6))
    assert reader.knows(*process(6))
    assert reader.settled
    assert reader.book.gaps == 0


def test_live_batches_wait_for_the_replay_and_are_taken_in_order() -> None:
    reader = Reader()
    reader.connect()
    reader.live(batch(4), batch(5))
    assert reader.known == []
    reader.replay(*process(5))
    assert reader.knows(*process(6))
    assert reader.book.duplicates == 1
    assert reader.settled


def test_a_gap_is_filled() -> None:
    reader = following(3)
    reader.live(batch(5), batch(6))
    assert reader.asked == 2  # the last one known: proves that it is the same process
    assert not reader.book.trusted
    reader.replay(*process(7))
    assert reader.settled
    assert reader.knows(*process(7))
    assert (reader.book.gaps, reader.forgets, reader.book.joined_late) == (1, 0, False)


def test_a_gap_that_the_buffer_no_longer_covers_forgets_and_goes_on() -> None:
    reader = following(3)
    reader.live(batch(50))
    reader.replay(*process(51, start=40))
    assert reader.settled
    assert reader.knows(*process(51, start=40))
    assert reader.forgets == 1
    assert reader.book.joined_late


def test_a_hole_for_ever_is_asked_for_twice_and_then_given_up() -> None:
    reader = following(3)
    holed = [one for one in process(8) if one.seq != 3]
    reader.live(batch(4))
    reader.replay(*holed)
    assert reader.asked == 2
    reader.replay(*holed)
    assert reader.settled
    assert reader.knows(*process(8, start=4))
    assert reader.forgets == 1
    assert reader.book.joined_late
    reader.live(batch(8))
    assert reader.knows(*process(9, start=4))


def test_a_hole_that_only_the_live_stream_shows_is_given_up_as_well() -> None:
    reader = following(3)
    reader.live(batch(4))
    for _ in range(2):
        reader.replay(batch(2))
    assert reader.settled
    assert reader.knows(batch(4))
    assert reader.forgets == 1


def test_a_replay_that_drops_its_end_is_asked_for_again_from_where_it_got() -> None:
    reader = Reader()
    reader.connect()
    reader.replay(*process(30), complete=False)
    assert reader.asked == 29
    reader.replay(*process(100))
    assert reader.knows(*process(100))
    assert reader.settled


def test_a_replay_that_drops_some_in_the_middle_is_asked_for_again() -> None:
    reader = Reader()
    reader.connect()
    reader.replay(*process(30), *process(50, start=40))
    assert reader.asked == 29
    reader.replay(*process(50))
    assert reader.knows(*process(50))


def test_without_an_end_marker_the_live_stream_may_prove_that_all_came() -> None:
    reader = Reader()
    reader.connect()
    reader.live(batch(30))
    reader.replay(*process(30), complete=False)
    assert reader.settled
    assert reader.knows(*process(31))


def test_a_reconnect_that_no_replay_explains_forgets_with_the_next_batch() -> None:
    reader = following(3)
    reader.connect()
    reader.replay(complete=False)
    reader.replay(complete=False)
    assert reader.asked is None
    assert reader.book.state == "lost"
    reader.live(batch(3, born=500))  # another process that has come just as far
    assert reader.settled
    assert reader.knows(batch(3, born=500))
    assert reader.book.joined_late


def test_a_doubted_number_is_not_taken_while_a_replay_can_still_explain_it() -> None:
    reader = following(1)
    reader.connect()
    reader.live(batch(1, born=500))
    reader.replay(complete=False)
    assert reader.asked == 0
    reader.replay(*process(2, born=500))
    assert reader.asked == 0
    reader.replay(*process(2, born=500))
    assert reader.settled
    assert reader.knows(*process(2, born=500))


def test_a_silent_replay_endpoint_at_the_start_means_joined_late() -> None:
    reader = Reader()
    reader.connect()
    reader.replay(complete=False)
    reader.live(batch(7), batch(8))
    reader.replay(complete=False)
    assert reader.settled
    assert reader.knows(batch(7), batch(8))
    assert reader.book.joined_late


def large(*batches: EventBatch) -> list[EventBatch]:
    """The same, so large that a fifth one does not fit where they wait for a replay."""
    return [one._replace(size_bytes=event_sequencer.MAX_HELD_BYTES // 4) for one in batches]


def silenced() -> Reader:
    """A reader that joined a busy engine late, and whose two requests for a replay were not answered."""
    reader = Reader()
    reader.connect()
    for seq in (100, 110):
        reader.live(*large(*process(seq + 10, start=seq)))
        reader.replay(complete=False)
    assert reader.asked is None
    assert reader.book.replay_silent
    return reader


def test_a_busy_engine_whose_replay_endpoint_is_silent_is_followed_without_it() -> None:
    reader = silenced()
    reader.live(*large(*process(200, start=120)))
    assert reader.settled, "batches dropped while they waited are no reason to wait again"
    assert reader.knows(*large(*process(200, start=120)))
    assert reader.book.joined_late
    assert reader.book.replays == 2


def test_a_silent_replay_endpoint_is_tried_again_after_a_while_and_less_and_less_often() -> None:
    reader = silenced()
    seq, pause_s = 120, event_sequencer.FIRST_PAUSE_S
    for _ in range(8):
        reader.now += pause_s - 1.0
        reader.live(batch(seq))
        assert reader.settled, "a gap, and too early"
        reader.now += 1.0
        reader.live(batch(seq + 2))
        assert reader.asked is not None
        reader.replay(complete=False)  # once is enough now
        assert reader.settled
        assert reader.knows(batch(seq + 2))
        seq, pause_s = seq + 10, min(2 * pause_s, event_sequencer.LONGEST_PAUSE_S)
    assert pause_s == event_sequencer.LONGEST_PAUSE_S


def test_a_replay_endpoint_that_answers_again_is_used_as_before() -> None:
    reader = silenced()
    reader.now += event_sequencer.FIRST_PAUSE_S
    reader.live(batch(150))
    reader.replay(*process(151))
    assert not reader.book.replay_silent
    assert reader.settled
    reader.live(batch(152))
    reader.replay(complete=False)
    assert reader.asked == 150, "one silence is not two"
    reader.replay(*process(153, start=150))
    assert reader.settled
    assert not reader.book.replay_silent


def test_a_reconnect_tries_a_silent_replay_endpoint_once() -> None:
    reader = silenced()
    reader.live(batch(120))
    reader.connect()
    assert reader.asked == 120
    reader.live(batch(121, born=3.0))
    reader.replay(complete=False)
    assert reader.settled
    assert reader.knows(batch(121, born=3.0)), "it may be another process"
    reader.live(batch(130, born=3.0))
    assert reader.settled, "a gap, and no more attempts for a while"
    reader.connect()
    reader.replay(*process(9, born=500.0))
    reader.replay(*process(9, born=500.0))
    assert reader.settled
    assert reader.knows(*process(9, born=500.0))
    assert not reader.book.joined_late


def test_a_replay_that_answers_a_little_is_no_silence() -> None:
    reader = Reader()
    reader.connect()
    for start in range(0, 50, 10):
        reader.replay(*process(start + 11, start=start), complete=False)
        assert reader.asked == start + 10
    assert not reader.book.replay_silent


def test_duplicates_change_nothing() -> None:
    reader = following(4)
    reader.live(batch(3), batch(1))
    assert reader.book.duplicates == 2
    assert reader.knows(*process(4))
    assert reader.settled


def test_a_restart_is_seen_when_the_number_falls_and_the_clock_goes_on() -> None:
    reader = following(4)
    reader.live(batch(0, born=500))
    assert reader.settled
    assert reader.knows(batch(0, born=500))
    assert (reader.book.restarts, reader.forgets) == (1, 1)


def test_a_restart_seen_late_is_replayed_from_its_start() -> None:
    reader = following(4)
    reader.live(batch(2, born=500))
    assert reader.asked == 0
    assert reader.known == []
    reader.replay(*process(3, born=500))
    assert reader.settled
    assert reader.knows(*process(3, born=500))
    assert not reader.book.joined_late


def test_a_restart_that_has_passed_our_number_looks_like_a_gap_and_is_found_out() -> None:
    reader = following(4)
    reader.live(batch(9, born=500))
    assert reader.asked == 3
    reader.replay(*process(10, born=500))
    assert reader.asked == 0
    assert reader.known == []
    reader.replay(*process(10, born=500))
    assert reader.settled
    assert reader.knows(*process(10, born=500))
    assert (reader.book.restarts, reader.book.joined_late) == (1, False)


def test_after_a_reconnect_the_same_process_goes_on() -> None:
    reader = following(4)
    reader.connect()
    assert not reader.book.trusted
    assert reader.asked == 3
    reader.replay(*process(6))
    assert reader.settled
    assert reader.knows(*process(6))
    assert (reader.book.restarts, reader.forgets) == (0, 0)


def test_after_a_reconnect_an_idle_new_process_is_noticed() -> None:
    reader = following(4)
    reader.connect()
    reader.replay()
    assert reader.asked == 0
    reader.replay()
    assert reader.settled
    assert reader.known == []
    assert reader.book.restarts == 1
    reader.live(batch(0, born=500))
    assert reader.knows(batch(0, born=500))


def test_a_reconnect_during_a_replay_asks_again() -> None:
    reader = following(4)
    reader.live(batch(6))
    reader.connect()
    reader.live(batch(0, born=500))
    reader.replay(*process(7))  # still from the process that is gone
    assert reader.asked == 3
    reader.replay(batch(0, born=500))
    reader.replay(batch(0, born=500))
    assert reader.settled
    assert reader.knows(batch(0, born=500))


def test_without_replay_a_gap_forgets_and_goes_on() -> None:
    reader = Reader(replayable=False)
    reader.connect()
    assert not reader.book.trusted
    reader.live(*process(3))
    assert reader.settled
    assert not reader.book.joined_late
    reader.live(batch(9))
    assert reader.settled
    assert reader.knows(batch(9))
    assert (reader.book.gaps, reader.forgets, reader.book.joined_late) == (1, 1, True)


def test_without_replay_a_late_start_is_late_until_the_cache_is_cleared() -> None:
    reader = Reader(replayable=False)
    reader.live(batch(9))
    assert reader.settled
    assert reader.book.joined_late
    assert reader.book.gaps == 0
    reader.live(batch(10, events=[BlocksCleared()]))
    assert not reader.book.joined_late


def test_without_replay_a_reconnect_is_doubted_until_the_next_batch() -> None:
    reader = Reader(replayable=False)
    reader.connect()
    reader.live(*process(3))
    reader.connect()
    assert not reader.book.trusted
    reader.live(batch(3))
    assert reader.settled
    assert reader.knows(*process(4))


@pytest.mark.parametrize("born", [500.0, 3.0])  # its clock goes on, or is wrong
@pytest.mark.parametrize(("first", "late"), [(0, False), (2, True)])
def test_without_replay_a_low_number_after_a_reconnect_is_a_new_process(born: float, first: int, late: bool) -> None:
    reader = Reader(replayable=False)
    reader.connect()
    reader.live(*process(3))
    reader.connect()
    reader.live(*process(9, born, start=first))
    assert reader.settled
    assert reader.knows(*process(9, born, start=first))
    assert (reader.book.restarts, reader.book.joined_late, reader.book.duplicates) == (1, late, 0)


def test_without_replay_a_clock_that_falls_at_a_reconnect_is_a_new_process_whatever_its_numbers() -> None:
    reader = Reader(replayable=False)
    reader.connect()
    reader.live(*process(3))
    reader.connect()
    reader.live(batch(3, born=3.0))
    assert reader.knows(batch(3, born=3.0))
    assert (reader.book.restarts, reader.book.joined_late) == (1, True)


def test_without_a_reconnect_a_low_number_with_an_old_clock_is_a_duplicate() -> None:
    reader = Reader(replayable=False)
    reader.connect()
    reader.live(*process(3))
    reader.connect()
    reader.live(batch(3), batch(1))
    assert reader.knows(*process(4))
    assert (reader.book.restarts, reader.book.duplicates) == (0, 1)


def test_a_resumed_book_without_replays_finds_out_a_process_with_an_earlier_clock() -> None:
    reader = resumed(4, replayable=False)
    reader.connect()
    reader.live(batch(0, born=3.0))
    assert reader.knows(batch(0, born=3.0))
    assert reader.book.restarts == 1


def resumed(count: int, replayable: bool = True) -> Reader:
    """A reader in a new router, which knows the first `count` batches of a process from a snapshot."""
    before = following(count)
    assert before.book.cursor is not None
    reader = Reader(replayable)
    reader.book = EventSequencer.resume(replayable, before.book.cursor)
    reader.known = before.known
    assert not reader.book.trusted
    return reader


def test_a_book_that_heard_nothing_has_no_cursor() -> None:
    assert EventSequencer(True).cursor is None
    assert following(3).book.cursor == event_sequencer.StreamCursor(2, process(3)[2].wall_s, False)


def test_a_resumed_book_goes_on_with_the_same_process() -> None:
    reader = resumed(4)
    reader.connect()
    assert reader.asked == 3
    reader.replay(*process(9))
    assert reader.settled
    assert reader.knows(*process(9))
    assert (reader.book.restarts, reader.book.gaps, reader.book.joined_late) == (0, 0, False)


def test_a_resumed_book_finds_out_another_process() -> None:
    for count in (0, 2, 9):  # of batches in its life so far
        reader = resumed(4)
        reader.connect()
        reader.replay(*process(count, born=500))
        if reader.asked is not None:
            reader.replay(*process(count, born=500))
        assert reader.settled
        assert reader.knows(*process(count, born=500))
        assert reader.book.restarts == 1


def test_a_resumed_book_whose_past_is_not_replayed_any_more_begins_late() -> None:
    reader = resumed(4)
    reader.connect()
    reader.replay(*process(9, start=6))
    assert reader.settled
    assert reader.knows(*process(9, start=6))
    assert reader.book.joined_late


def test_a_resumed_book_takes_no_live_batch_unproved() -> None:
    reader = resumed(4)
    reader.live(batch(4))
    assert reader.asked == 3
    assert not reader.book.trusted


@pytest.mark.parametrize(("seq", "known"), [(4, process(5)), (6, [batch(6)])])
def test_without_replays_the_next_batch_decides_for_a_resumed_book(seq: int, known: list[EventBatch]) -> None:
    reader = resumed(4, replayable=False)
    reader.connect()
    assert not reader.book.trusted
    reader.live(batch(seq))
    assert reader.settled
    assert reader.knows(*known)


def test_what_waits_for_a_replay_is_bounded() -> None:
    """What comes beyond the bound is dropped: a gap, which the next replay closes."""
    reader, size_bytes = Reader(), event_sequencer.MAX_HELD_BYTES // 4
    large = [one._replace(size_bytes=size_bytes) for one in process(10)]
    reader.connect()
    reader.live(*large[:9])
    reader.replay()
    assert reader.knows(*large[:4])
    assert reader.settled
    reader.live(large[9])
    assert reader.asked == 3
    reader.replay(*large)
    assert reader.knows(*large)
    assert reader.settled
    reader.connect()  # what was held is not counted any more
    reader.live(*(one._replace(size_bytes=size_bytes) for one in process(14, start=10)))
    reader.replay(large[9])
    assert reader.book.last_seq == 13


def test_a_replay_nobody_waits_for_is_ignored() -> None:
    reader = following(3)
    assert reader.book.on_replayed(batch(3), 0.0) == []
    assert reader.book.on_replay_end(True, 0.0) == []
    assert reader.knows(*process(3))


def test_ages_and_lag() -> None:
    book = EventSequencer(replayable=False)
    assert book.last_heard_s is None
    assert book.lag_s is None
    book.on_live(EventBatch(0, 70.0, 0, [], {}), now=5.0, wall=70.25)
    assert book.last_heard_s == 5.0
    assert book.lag_s == 0.25


@examples(500)
@given(st.data())
def test_whatever_is_lost_on_the_way_the_end_is_exact(data: st.DataObject) -> None:
    """Live batches drop, repeat, and the engine restarts; replays break off or lose their middle. As long as the
    buffer covers everything and replays work in the end, the reader knows exactly the present process's batches."""
    reader, born, sent = Reader(), 100.0, 0
    reader.connect()
    for _ in range(data.draw(st.integers(0, 30))):
        match data.draw(
            st.sampled_from(["live", "live", "live", "lose", "repeat", "restart", "replay", "broken", "holed"])
        ):
            case "live":
                reader.live(batch(sent, born))
                sent += 1
            case "lose":
                sent += 1
            case "repeat" if sent and born == 100.0:
                reader.live(batch(data.draw(st.integers(0, sent - 1)), born))
            case "restart":
                born, sent = born + 1000.0, 0
                reader.connect()
            case "replay" if reader.asked is not None:
                reader.replay(*process(sent, born))
            case "broken" if reader.asked is not None:
                reader.replay(*process(data.draw(st.integers(0, sent)), born), complete=False)
            case "holed" if reader.asked is not None and sent:
                hole = data.draw(st.integers(0, sent - 1))
                reader.replay(*(one for one in process(sent, born) if one.seq != hole))
    reader.connect()
    for _ in range(8):
        if reader.asked is not None:
            reader.replay(*process(sent, born))
    assert reader.settled
    if not reader.book.joined_late:
        assert reader.knows(*process(sent, born))
    elif sent:
        assert reader.known[-1:] == batch(sent - 1, born).events


def test_answers_without_events_make_a_live_stream_silent_until_something_arrives() -> None:
    reader = following(3)
    for n in range(UNANNOUNCED):
        assert reader.settled
        reader.book.on_answer(sent_at=10.0 + n, now=10.5 + n)
    assert reader.book.silent
    assert not reader.settled
    reader.live(batch(3))
    assert reader.settled


def test_another_connection_is_not_silent() -> None:
    reader = following(3)
    for n in range(UNANNOUNCED):
        reader.book.on_answer(sent_at=10.0 + n, now=10.5 + n)
    reader.connect()
    assert not reader.book.silent


def test_answers_that_end_together_count_once() -> None:
    """Their events may be on the way."""
    reader = following(3)
    for n in range(10):
        reader.book.on_answer(sent_at=10.0, now=10.5 + n / 1000)
    assert not reader.book.silent


def test_a_stream_that_delivered_something_since_or_never_is_not_silent() -> None:
    reader, never = following(3), Reader()
    for n in range(2 * UNANNOUNCED):
        reader.now = 10.1 + n
        reader.live(batch(3 + n))
        reader.book.on_answer(sent_at=10.0 + n, now=10.5 + n)
        never.book.on_answer(sent_at=10.0 + n, now=10.5 + n)
    assert not reader.book.silent
    assert not reader.book.mute
    assert not never.book.silent


@pytest.mark.parametrize("by_replay", [False, True])
def test_answers_without_any_event_make_a_stream_mute_until_the_first_one(by_replay: bool) -> None:
    """It may have another topic. Its index is not doubted for that, as nothing of it was ever believed."""
    reader = Reader()
    for n in range(UNANNOUNCED):
        reader.book.on_answer(sent_at=10.0 + n, now=10.5 + n)
    assert not reader.book.mute, "nobody answers at its endpoint"
    reader.connect()
    reader.replay()
    for n in range(UNANNOUNCED):
        assert not reader.book.mute
        reader.book.on_answer(sent_at=20.0 + n, now=20.5 + n)
    assert reader.book.mute
    assert not reader.book.silent
    reader.connect()
    assert reader.book.mute, "a reconnect mends nothing"
    if by_replay:
        reader.replay(batch(0))
    else:
        reader.replay()
        reader.live(batch(0))
    assert not reader.book.mute
    reader.book.on_answer(sent_at=30.0, now=30.5)
    assert not reader.book.silent
