"""What happens to several parts of a target at once."""

from __future__ import annotations

import pytest

from router.config import schema
from router.fleet.engine_facts import Gauges, PoolTransferCounts
from router.fleet.fleet import Fleet
from router.fleet.instance import DECODE_TOKENS, FetchedKv, Instance, Target
from router.fleet.latency_model import CURVE_SAMPLES
from router.fleet.load import NO_SHARE, WorkerShare
from router.fleet.step_change import LEARNED, RUN
from router.kvcache.events import Key
from scorers.contract import Overlap, Speed, Transfer


def a_target() -> Target:
    instance = Fleet(schema.FleetConfig()).join(schema.InstanceConfig(url="http://a:1"))
    assert isinstance(instance, Instance)
    return instance.targets[0]


def pool(target: Target) -> Transfer:
    transfer = target.latency_model.speed(1e6).pool
    assert transfer is not None
    return transfer


def page(loads: tuple[int, int, float] | None, block_tokens: int | None = 16) -> Gauges:
    return Gauges(
        0, 0, 0.0, block_tokens, 3200, None, None, pool_loads=None if loads is None else PoolTransferCounts(*loads)
    )


def test_a_target_is_named_after_instance_and_rank_and_renewal_reaches_every_part() -> None:
    target = a_target()
    assert target.id == "a:1/0"
    for _ in range(3):
        target.breaker.on_request_end("failure", 0.0)
        target.overlap_accuracy.observe(160, 0, 16)
    target.apply_gauges(Gauges(1, 0, 0.2, 16, 3200, None, None), 5.0)
    target.latency_model.observe_prefill(100, 0, 50.0, 1.0)
    assert target.breaker.state(0.0) == "open"
    assert not target.overlap_accuracy.trusted
    assert target.capacity_tokens == 3200
    target.apply_gauges(Gauges(2, 0, 0.2, None, None, None, None), 6.0)
    assert target.capacity_tokens == 3200, "a page that does not say takes nothing back"
    target.reset()
    assert target.breaker.allows(0.0)
    assert target.overlap_accuracy.trusted
    assert (target.capacity_tokens, target.block_tokens, target.load_book.gauges_at) == (None, None, None)
    assert target.latency_model.samples == 1, "the hardware is the same"


TRUTH = Speed(30.0, 50.0, 1.0, 0, None, None, None, None)


@pytest.mark.parametrize(("held_tokens", "slowdown"), [(2700, 10.0), (2701, 1.0)])
def test_prompts_that_wait_for_memory_are_no_step_of_the_speed(held_tokens: int, slowdown: float) -> None:
    target = a_target()
    target.apply_gauges(page(None), 0.0)  # its cache has 3,200 tokens
    target.book(held_tokens, held_tokens).on_first_byte()
    for number, factor in enumerate([1.0] * LEARNED + [10.0] * RUN):
        booking = target.book(500, 500)
        target.observe_prefill(booking, 500, 0, factor * TRUTH.prefill_ms(500, 0), number / 10)
        booking.release()
    assert target.latency_model.slowdown == pytest.approx(slowdown, rel=0.1)


def test_a_full_target_keeps_of_a_prompt_what_live_requests_use_and_leave_free() -> None:
    target, held = a_target(), Overlap(160, 160, 160, 160, "events", None)
    keys = {16: [Key(number) for number in range(1, 11)]}
    assert target.expect_kept(held, keys) is held, "the capacity is unknown"
    target.apply_gauges(page(None), 1.0)  # 3,200 tokens
    target.book(0, 3040)
    assert target.expect_kept(held, keys) is held, "just enough is free"
    target.book(0, 80)
    assert target.expect_kept(held, keys) == held._replace(expected_tokens=80)
    target.book(0, 500)
    assert target.expect_kept(held, keys) == held._replace(expected_tokens=0), "more is booked than there is"
    assert target.expect_kept(held._replace(expected_tokens=0), keys).expected_tokens == 0
    begun = target.book(0, 64, {16: keys[16][:4]})  # live requests use the first four blocks
    assert target.expect_kept(held, keys) == held._replace(expected_tokens=64)
    target.load_book.set_siblings(WorkerShare(requests=1))
    assert target.expect_kept(held, keys) is held, "which blocks other workers' requests use is unknown"
    target.load_book.set_siblings(NO_SHARE)
    begun.release()
    assert target.expect_kept(held, keys) == held._replace(expected_tokens=0)


def test_an_answer_that_loaded_teaches_the_link_and_only_if_it_was_alone() -> None:
    target = a_target()
    for i in range(CURVE_SAMPLES):
        booking = target.book(500 + 100 * i, 500 + 100 * i)
        target.observe_prefill(booking, 500 + 100 * i, 0, TRUTH.prefill_ms(500 + 100 * i, 0), float(i))
        booking.release()
    alone, beside = target.book(100, 2100), target.book(100, 2100)
    target.observe_prefill(beside, 2100, 2000, 900.0, 20.0, FetchedKv("pool", 2000))
    assert pool(target).samples == 0
    # 50 for the load: 400 tokens were on the GPU, 1600 came from the pool, 100 were computed after 2000
    target.observe_prefill(alone, 2100, 2000, 50 + TRUTH.prefill_ms(100, 2000), 20.0, FetchedKv("pool", 1600))
    assert pool(target).samples == 1
    assert target.latency_model.samples == CURVE_SAMPLES
    before, after = 5 + 1.6 * 10, pool(target).base_ms + 1.6 * pool(target).us_per_token
    assert before < after < 60


def test_counters_between_two_polls_teach_the_pool() -> None:
    target = a_target()
    target.apply_gauges(page((10, 1000, 1.0)), 1.0)
    assert pool(target).samples == 0, "nothing to compare with"
    for i in range(1, 20):
        # every quarter second 4 loads of 125 blocks, 0.5 s together: 2000 tokens in 125 ms each
        target.apply_gauges(page((10 + 4 * i, 1000 + 500 * i, 1.0 + 0.5 * i)), 1.0 + i)
    assert pool(target).samples == 19
    assert pool(target).base_ms + 2 * pool(target).us_per_token == pytest.approx(125, rel=0.1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((10, 1000, 1.0), (2, 200, 0.1)),  # a restart
        ((10, 1000, 1.0), (12, 200, 0.2)),  # a restart that has already loaded more often
        ((10, 1000, 1.0), (10, 1000, 1.0)),  # nothing was loaded
        ((10, 1000, 1.0), (11, 1100, 1.0)),  # no time at all
        ((10, 1000, 1.0), None),
        (None, (10, 1000, 1.0)),
    ],
)
def test_counters_that_do_not_rise_together_teach_nothing(
    before: tuple[int, int, float] | None, after: tuple[int, int, float] | None
) -> None:
    target = a_target()
    target.apply_gauges(page(before), 1.0)
    target.apply_gauges(page(after), 2.0)
    assert pool(target).samples == 0


def test_counters_of_another_process_or_of_blocks_of_unknown_size_teach_nothing() -> None:
    target = a_target()
    target.apply_gauges(page((10, 1000, 1.0)), 1.0)
    target.reset()
    target.apply_gauges(page((14, 1500, 1.5)), 2.0)
    assert pool(target).samples == 0
    target.reset()
    for i in range(1, 3):
        target.apply_gauges(page((10 * i, 1000 * i, 1.0 * i), block_tokens=None), 3.0 + i)
    assert pool(target).samples == 0


def decode_samples(target: Target) -> int:
    decode = target.latency_model.speed(1e6).decode
    assert decode is not None
    return decode.samples


def test_a_streamed_answer_teaches_the_decode_step_of_its_batch() -> None:
    target = a_target()
    neighbour = target.book(0, 3000)
    for i in range(40):
        booking = target.book(100, 1000)
        booking.on_first_byte()
        booking.release()
        # 101 tokens in 2,300 ms, of which the first took 300: 20 ms each, in a batch of 2 with 4,000 tokens
        target.observe_decode(booking, 101, 300.0, 2300.0, float(i))
    neighbour.release()
    decode = target.latency_model.speed(40.0).decode
    assert decode is not None
    assert decode.samples == 40
    assert decode.step_ms(2, 4000) == pytest.approx(20.0, rel=0.05)


def test_prefills_between_the_tokens_of_an_answer_are_not_the_engine_s_own_step() -> None:
    """An answer of 101 tokens in steps of 10 ms, during which the engine computes another prompt of 2,000 tokens for
    200 ms: 12 ms per token for the client.
    """
    target = a_target()
    for i in range(40):  # 100 us per token
        target.latency_model.observe_prefill(1000 + 100 * i, 0, 100.0 + 10 * i, float(i))
    for i in range(60):
        booking = target.book(100, 1000)
        booking.on_first_byte()
        other = target.book(2000, 2000)
        other.on_first_byte()
        cancelled = target.book(5000, 5000)
        cancelled.release()
        other.release()
        booking.release()
        target.observe_decode(booking, 101, 300.0, 1500.0, 40.0 + i)
    decode, alone = target.latency_model.speed(100.0).decode, target.latency_model.decode_alone(100.0)
    assert decode is not None
    assert decode.step_ms(1, 1000) == pytest.approx(12.0, rel=0.05)
    assert alone.step_ms(1, 1000) == pytest.approx(10.0, rel=0.05)
    assert alone.samples == 60


def test_short_answers_and_those_without_a_first_byte_teach_nothing_of_decoding() -> None:
    target = a_target()
    short, silent, open_ = target.book(1, 1), target.book(1, 1), target.book(1, 1)
    short.on_first_byte()
    short.release()
    target.observe_decode(short, DECODE_TOKENS - 1, 10.0, 500.0, 1.0)
    silent.release()
    target.observe_decode(silent, 100, 10.0, 500.0, 2.0)
    open_.on_first_byte()
    target.observe_decode(open_, 100, 10.0, 500.0, 3.0)
    assert decode_samples(target) == 0
    target.observe_decode(short, DECODE_TOKENS, 10.0, 500.0, 4.0)
    assert decode_samples(target) == 1
