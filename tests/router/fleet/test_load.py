"""Our own books, exactly once each way, and what they make of an engine's gauges."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.engine_facts import Gauges
from router.fleet.load import BatchShare, Booking, LoadBook, attended_pairs
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import Key
from scorers.contract import Speed

SPEED = Speed(10.0, 100.0, 2.0, 0, None, None, None, None)


def gauges(running: int | None = None, waiting: int | None = None) -> Gauges:
    return Gauges(running, waiting, 0.5, 16, 1000, frozenset({"a"}), 4, frozenset({"b"}))


def totals(load_book: LoadBook) -> tuple[int, int, int, float, int, int, int]:
    return (
        load_book.requests,
        load_book.prefilling,
        load_book.prefill_tokens,
        load_book.prefill_attended,
        load_book.prompt_tokens,
        load_book.context_tokens,
        load_book.booked_tokens,
    )


def test_a_request_s_whole_life() -> None:
    load_book = LoadBook()
    booking = load_book.book(uncached_tokens=300, prompt_tokens=1000)
    assert totals(load_book) == (1, 1, 300, 300 * (700 + 150), 1000, 1000, 1000)
    booking.on_first_byte()
    assert totals(load_book) == (1, 0, 0, 0, 1000, 1000, 1000)
    assert booking.release()
    assert totals(load_book) == (0, 0, 0, 0, 0, 0, 0)


def test_released_before_its_first_byte_and_only_once() -> None:
    load_book = LoadBook()
    booking = load_book.book(300, 1000)
    other = load_book.book(7, 9)
    assert booking.release()
    assert not booking.release()
    assert load_book.double_releases == 1
    booking.on_first_byte()
    assert totals(load_book) == (1, 1, 7, attended_pairs(7, 2), 9, 9, 9)
    other.on_first_byte()
    other.on_first_byte()
    assert load_book.prefilling == 0


def test_totals_are_the_sum_of_the_bookings_in_any_order() -> None:
    dice = random.Random(7)
    load_book = LoadBook()
    live: list[Booking] = []
    for _ in range(2000):
        if live and dice.random() < 0.5:
            booking = dice.choice(live)
            if dice.random() < 0.5:
                booking.on_first_byte()
            else:
                live.remove(booking)
                assert booking.release()
        else:
            prompt = dice.randrange(1, 200_000)
            live.append(load_book.book(dice.randrange(prompt + 1), prompt))
        assert load_book.requests == len(live)
    for booking in live:
        booking.release()
    assert totals(load_book) == (0, 0, 0, 0, 0, 0, 0)
    assert load_book.double_releases == 0


def test_queued_ms_prices_each_request_by_itself() -> None:
    load_book = LoadBook()
    load_book.book(1000, 1000)
    load_book.book(500, 2500)
    # 10 + 100 + 1000 * 500 * 2 / 1e6 = 111;   10 + 50 + 500 * (2000 + 250) * 2 / 1e6 = 62.25
    assert load_book.load(SPEED, 0.0).queued_ms == pytest.approx(111 + 62.25)
    assert load_book.load(SPEED, 0.0).queued_ms == pytest.approx(
        SPEED.prefill_ms(1000, 0) + SPEED.prefill_ms(500, 2000)
    )


def test_before_the_first_poll_everything_of_the_engine_is_unknown() -> None:
    load = LoadBook().load(SPEED, 5.0)
    assert (load.running, load.waiting, load.kv_usage, load.elsewhere) == (None, None, None, None)
    assert (load.metrics_age_s, load.adapters, load.waiting_adapters) == (None, None, None)
    assert (load.requests, load.queued_ms) == (0, 0.0)


def test_strangers_are_what_is_not_ours() -> None:
    load_book = LoadBook()
    load_book.book(1, 1)
    load_book.begin_poll()
    load_book.apply_gauges(gauges(running=3, waiting=2), sent_at=10.0)
    load = load_book.load(SPEED, 10.5)
    assert load.elsewhere == 4
    assert load.metrics_age_s == pytest.approx(0.5)
    assert (load.running, load.waiting, load.kv_usage, load.max_adapters) == (3, 2, 0.5, 4)
    assert (load.adapters, load.waiting_adapters) == (frozenset("a"), frozenset("b"))


def test_memory_that_several_requests_share_counts_once() -> None:
    load_book = LoadBook()
    first = load_book.book(110, 110, [Key(1), Key(2), Key(3)], 32)
    assert load_book.live_tokens == 3 * 32 + 32  # the last block is not full
    second = load_book.book(70, 150, [Key(1), Key(2), Key(8), Key(9)], 32)
    assert load_book.live_tokens == 4 * 32 + 3 * 32
    unknown = load_book.book(10, 10)
    assert load_book.live_tokens == 4 * 32 + 3 * 32 + 10
    first.release()
    first.release()
    assert load_book.live_tokens == 5 * 32 + 10
    unknown.release()
    second.release()
    assert load_book.live_tokens == 0


def test_memory_in_use_beyond_ours_is_others_and_answers() -> None:
    """The gauge shows 500 of 1,000 tokens. Of ours 320 were booked at most while the poll was under way."""
    load_book = LoadBook()
    booking = load_book.book(320, 320)
    load_book.begin_poll()
    booking.release()
    load_book.apply_gauges(gauges(1, 0), sent_at=1.0)
    assert (load_book.unbooked_tokens, load_book.live_tokens) == (180, 180)
    load_book.book(100, 100)
    assert load_book.load(SPEED, 2.0).live_tokens == 280
    load_book.apply_gauges(gauges(1, 0)._replace(kv_usage=None), sent_at=2.0)
    assert (load_book.unbooked_tokens, load_book.live_tokens) == (None, 100)
    load_book.apply_gauges(gauges(1, 0)._replace(kv_usage=0.01), sent_at=3.0)
    assert (load_book.unbooked_tokens, load_book.live_tokens) == (0, 100)


@pytest.mark.parametrize("page", [gauges(running=None, waiting=2), gauges(running=2, waiting=None)])
def test_half_a_page_says_nothing_of_strangers(page: Gauges) -> None:
    load_book = LoadBook()
    load_book.apply_gauges(page, 1.0)
    assert load_book.elsewhere is None


def test_ours_that_ended_while_the_poll_was_under_way_are_not_strangers() -> None:
    load_book = LoadBook()
    bookings = [load_book.book(1, 1) for _ in range(3)]
    load_book.begin_poll()
    for booking in bookings:
        booking.release()
    load_book.apply_gauges(gauges(running=3, waiting=0), 1.0)
    assert load_book.elsewhere == 0


def test_ours_that_came_while_the_poll_was_under_way_are_not_strangers() -> None:
    load_book = LoadBook()
    load_book.begin_poll()
    booking = load_book.book(1, 1)
    booking.release()  # even one that came and went
    load_book.apply_gauges(gauges(running=1, waiting=0), 1.0)
    assert load_book.elsewhere == 0


def test_an_older_peak_of_ours_does_not_hide_strangers() -> None:
    load_book = LoadBook()
    for booking in [load_book.book(1, 1) for _ in range(5)]:
        booking.release()
    load_book.begin_poll()
    load_book.apply_gauges(gauges(running=2, waiting=1), 1.0)
    assert load_book.elsewhere == 3


def test_fewer_than_ours_is_none_elsewhere() -> None:
    """The engine has not heard yet of what we have just booked."""
    load_book = LoadBook()
    for _ in range(4):
        load_book.book(1, 1)
    load_book.begin_poll()
    load_book.apply_gauges(gauges(running=1, waiting=0), 1.0)
    assert load_book.elsewhere == 0


def test_gauges_of_a_gone_process_are_forgotten_and_the_books_are_not() -> None:
    load_book = LoadBook()
    load_book.book(5, 10)
    load_book.apply_gauges(gauges(1, 1), 1.0)
    load_book.forget_gauges()
    load = load_book.load(SPEED, 2.0)
    assert (load.running, load.elsewhere, load.metrics_age_s) == (None, None, None)
    assert load.requests == 1


def test_only_a_lone_prefill_shows_bare_speed() -> None:
    load_book = LoadBook()
    first = load_book.book(10, 10)
    second = load_book.book(10, 10)
    assert (first.alone, second.alone) == (True, False)
    first.on_first_byte()
    second.on_first_byte()
    third = load_book.book(10, 10)
    assert third.alone, "decoding neighbours are part of the normal"
    third.on_first_byte()
    load_book.apply_gauges(gauges(running=4, waiting=1), 1.0)
    assert not load_book.book(10, 10).alone, "somebody waits there, ours or not"


def test_the_prefills_during_an_answer_are_those_that_ended_since_its_first_byte() -> None:
    load_book = LoadBook()
    before, booking, during = load_book.book(100, 100), load_book.book(10, 10), load_book.book(300, 1000)
    assert booking.prefilled_per_step(1) is None
    before.on_first_byte()
    booking.on_first_byte()
    during.on_first_byte()
    load_book.book(7, 7).release()  # failed: nothing says that it was computed
    load_book.book(9, 9)  # not over
    assert booking.prefilled_per_step(10) == (30.0, 300 * (700 + 150) / 10)
    load_book.set_siblings(WorkerShare(requests=1))
    assert booking.prefilled_per_step(10) is None, "other processes do not say what their requests computed"


def test_the_batch_of_an_answer_is_the_mean_of_its_two_ends() -> None:
    load_book = LoadBook()
    booking = load_book.book(300, 1000)
    other = load_book.book(0, 500)
    assert booking.batch is None
    booking.on_first_byte()  # 2 requests, 1500 tokens
    booking.on_first_byte()
    for _ in range(2):
        load_book.book(0, 2000)
    assert booking.batch is None, "its end is not known yet"
    booking.release()  # 4 requests, 1000 + 500 + 4000 = 5500 tokens
    assert booking.batch == BatchShare(3.0, 3500.0)
    booking.release()
    assert booking.batch == BatchShare(3.0, 3500.0)
    other.release()
    assert other.batch is None, "it never had a first byte"
    other.on_first_byte()
    assert other.batch is None


def counting(output_tokens: int | None) -> Gauges:
    return Gauges(1, 0, 0.5, 16, 1000, None, None, output_tokens=output_tokens)


def test_answer_tokens_per_second_are_those_between_two_polls() -> None:
    load_book = LoadBook()
    load_book.apply_gauges(counting(1000), sent_at=10.0)
    assert load_book.load(SPEED, 10.0).output_tokens_per_s is None, "nothing to compare with"
    load_book.apply_gauges(counting(1500), sent_at=10.75)
    assert load_book.load(SPEED, 11.0).output_tokens_per_s == 666.667  # 500 / 0.75
    load_book.apply_gauges(counting(1500), sent_at=11.0)
    assert load_book.load(SPEED, 11.0).output_tokens_per_s == 0.0, "it answered nobody"


@pytest.mark.parametrize(
    ("before", "after", "sent_at"),
    [(1000, 20, 11.0), (1000, None, 11.0), (None, 1000, 11.0), (1000, 1500, 10.0), (1000, 1500, 9.0)],
)
def test_a_counter_that_fell_or_a_poll_that_was_not_later_tells_no_rate(
    before: int | None, after: int | None, sent_at: float
) -> None:
    load_book = LoadBook()
    load_book.apply_gauges(counting(before), sent_at=10.0)
    load_book.apply_gauges(counting(after), sent_at=sent_at)
    assert load_book.load(SPEED, 12.0).output_tokens_per_s is None


def test_the_rate_goes_with_the_process() -> None:
    load_book = LoadBook()
    load_book.apply_gauges(counting(1000), sent_at=10.0)
    load_book.apply_gauges(counting(1500), sent_at=11.0)
    load_book.forget_gauges()
    assert load_book.load(SPEED, 12.0).output_tokens_per_s is None
    load_book.apply_gauges(counting(2000), sent_at=12.0)
    assert load_book.load(SPEED, 12.0).output_tokens_per_s is None


def test_times_are_rounded_to_what_is_worth_logging() -> None:
    load_book = LoadBook()
    load_book.apply_gauges(gauges(1, 1), sent_at=1.0)
    load_book.book(7, 7)
    odd = Speed(1 / 3, 100.0, 0.0, 0, None, None, None, None)
    load = load_book.load(odd, 1.0 + 2 / 3)
    assert repr(load.metrics_age_s) == "0.667"
    assert repr(load.queued_ms) == "1.033"  # 0.333... + 0.7


# several workers


def test_the_others_part_is_in_the_totals_and_not_in_what_is_our_own() -> None:
    load_book = LoadBook()
    load_book.book(uncached_tokens=300, prompt_tokens=1000)
    own = WorkerShare(*totals(load_book))
    load_book.set_siblings(WorkerShare(2, 1, 50, 25.0, 400, 450, 480))
    assert totals(load_book) == (3, 2, 350, 300 * (700 + 150) + 25.0, 1400, 1450, 1480)
    assert load_book.own == own
    load_book.set_siblings(WorkerShare(requests=1))  # in the place of what they had
    assert (load_book.requests, load_book.prefilling, load_book.own) == (2, 1, own)
    load_book.set_siblings(NO_SHARE)
    assert totals(load_book) == msgspec.structs.astuple(own)


def test_what_others_booked_is_not_elsewhere() -> None:
    """A poll finds 5: ours, 3 of the others, who told of one while it was under way, and a stranger's."""
    load_book = LoadBook()
    load_book.book(1, 1)
    load_book.set_siblings(WorkerShare(requests=2))
    load_book.begin_poll()
    load_book.set_siblings(WorkerShare(requests=3))
    load_book.apply_gauges(gauges(5, 0), sent_at=1.0)
    assert load_book.elsewhere == 1


def test_an_answer_beside_anothers_prefill_is_not_alone() -> None:
    load_book = LoadBook()
    load_book.set_siblings(WorkerShare(requests=1, prefilling=1))
    assert not load_book.book(1, 1).alone
    load_book = LoadBook()
    load_book.set_siblings(WorkerShare(requests=1))
    assert load_book.book(1, 1).alone


def test_whoever_keeps_a_load_hears_of_the_others() -> None:
    heard: list[int] = []
    load_book = LoadBook(lambda: heard.append(1))
    load_book.set_siblings(WorkerShare(requests=1))
    assert heard == [1]


@given(st.lists(st.tuples(st.integers(1, 999_983), st.integers(0, 999_983)), min_size=1, max_size=40))
def test_nothing_is_left_of_the_others_whatever_they_had(prompts: list[tuple[int, int]]) -> None:
    """In halves of pairs of tokens every sum is exact: differences leave no residue."""
    load_book = LoadBook()
    for uncached, cached in prompts:
        load_book.set_siblings(WorkerShare(1, 1, uncached, attended_pairs(uncached, cached) * 7))
        load_book.book(uncached, uncached + cached).release()
    load_book.set_siblings(NO_SHARE)
    assert totals(load_book) == (0, 0, 0, 0.0, 0, 0, 0)
