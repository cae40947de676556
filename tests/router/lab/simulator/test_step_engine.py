"""The simulated engine by hand: hits, copies, steps, queues, time. Blocks of 4 tokens unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import BlocksCleared, BlocksRemoved, BlocksStored, Event
from router.lab.simulator.engine_types import EngineShape, RequestId, SequenceOutput, SequenceRequest, StepResult
from router.lab.simulator.step_engine import StepEngine
from tests.suites.properties import examples

NINE = [11, 12, 13, 14, 21, 22, 23, 24, 31]  # two full blocks and a token


def small(**shape: Any) -> StepEngine:
    quick = {"block_tokens": 4, "blocks": 16, "prefill_tokens_per_s": 1000.0, "decode_ms_per_token": 10.0}
    return StepEngine(EngineShape(**(quick | shape)))


def submit(engine: StepEngine, tokens: Sequence[int], max_tokens: int = 1, now: float = 0.0, **more: Any) -> RequestId:
    id = engine.submit(SequenceRequest(tokens, max_tokens, **more), now)
    assert isinstance(id, int), id
    return id


def drive(engine: StepEngine, now: float = 0.0) -> list[tuple[float, StepResult]]:
    """Step until idle: every step's end and what came of it."""
    steps = []
    for _ in range(10_000):
        result = engine.step(now)
        if result.outputs or result.events:
            steps.append((now, result))
        if result.next_wake_s is None:
            return steps
        now = result.next_wake_s
    raise AssertionError("still not idle")


def complete(engine: StepEngine, tokens: Sequence[int], max_tokens: int = 1, **more: Any) -> tuple[int, list[Event]]:
    """One request alone: the cached tokens it found and the events it made."""
    submit(engine, tokens, max_tokens, **more)
    results = [result for _, result in drive(engine)]
    outputs = [output for result in results for output in result.outputs.values()]
    assert len(outputs) <= max_tokens
    return outputs[0].cached_tokens, [event for result in results for event in result.events]


def stores(events: Sequence[Event]) -> list[list[int]]:
    return [list(event.token_ids) for event in events if isinstance(event, BlocksStored)]


# -- what is stored, what is hit


def test_full_blocks_are_stored_once_in_one_event_and_the_rest_is_not() -> None:
    cached, events = complete(small(), NINE)
    assert cached == 0
    (event,) = events
    assert isinstance(event, BlocksStored)
    assert list(event.token_ids) == NINE[:8]
    assert (len(event.hashes), event.parent, event.block_tokens) == (2, None, 4)


def test_a_repeated_prompt_hits_its_full_blocks_and_announces_nothing() -> None:
    engine = small()
    complete(engine, NINE)
    assert complete(engine, NINE) == (8, [])


@pytest.mark.parametrize(("length", "hit"), [(3, 0), (4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_a_hit_never_covers_the_last_token(length: int, hit: int) -> None:
    """floor((n - 1) / 4) * 4"""
    engine = small()
    complete(engine, range(100, 100 + length))
    assert complete(engine, range(100, 100 + length))[0] == hit


def test_a_recomputed_last_block_is_a_second_copy() -> None:
    engine = small()
    _, first = complete(engine, NINE[:8])
    cached, second = complete(engine, NINE[:8])
    assert cached == 4  # so tokens 4..7 are computed again, into another block
    assert isinstance(first[0], BlocksStored)
    assert isinstance(second[0], BlocksStored)
    assert second[0].hashes == first[0].hashes[1:]
    assert second[0].parent == first[0].hashes[0]
    assert engine.gauges().cached_blocks == 3


def test_a_longer_prompt_continues_the_chain_of_a_shorter_one() -> None:
    engine = small()
    _, first = complete(engine, NINE)
    cached, second = complete(engine, [*NINE, 32, 33, 34, 41])
    assert cached == 8
    assert stores(second) == [[31, 32, 33, 34]]
    assert isinstance(first[0], BlocksStored)
    assert isinstance(second[0], BlocksStored)
    assert second[0].parent == first[0].hashes[1]


def test_blocks_filled_while_decoding_are_announced_with_the_tokens_said() -> None:
    engine = small(vocabulary=[77])
    _, events = complete(engine, NINE, max_tokens=5)
    # 9 prompt tokens and 77 77 77 77 77; the last is never computed, so 13 tokens are: blocks 0, 1 and 2
    assert stores(events) == [NINE[:8], [31, 77, 77, 77]]


def test_the_next_turn_hits_what_was_said() -> None:
    engine = small(vocabulary=[77])
    complete(engine, NINE, max_tokens=5)
    assert complete(engine, [*NINE, 77, 77, 77, 77, 77, 99])[0] == 12


@pytest.mark.parametrize("other", [{"salt": "tenant"}, {"adapter": "sql"}, {"adapter": "sql", "salt": "tenant"}])
def test_salt_and_adapter_keep_prompts_apart(other: dict[str, str]) -> None:
    engine = small(adapters={"sql": "/adapters/sql"})
    complete(engine, NINE)
    cached, events = complete(engine, NINE, **other)
    assert cached == 0
    (event,) = events
    assert isinstance(event, BlocksStored)
    assert (event.adapter, event.salt) == (other.get("adapter"), other.get("salt"))
    assert complete(engine, NINE, **other)[0] == 8


def test_only_the_first_event_of_a_chain_carries_the_salt() -> None:
    engine = small(vocabulary=[77])
    _, events = complete(engine, NINE, max_tokens=5, salt="tenant")
    assert [event.salt for event in events if isinstance(event, BlocksStored)] == ["tenant", None]


# -- eviction


def test_eviction_takes_the_tail_of_the_oldest_first_and_is_announced_before_the_store() -> None:
    engine = small(blocks=4)
    _, first = complete(engine, NINE)  # two cached blocks, a bare third, one never used
    assert isinstance(first[0], BlocksStored)
    _, events = complete(engine, range(200, 209))  # needs three: the two empty ones and one of the cached
    assert isinstance(events[0], BlocksRemoved)
    assert events[0].hashes == [first[0].hashes[1]]
    assert isinstance(events[1], BlocksStored)
    assert complete(engine, NINE)[0] == 4


def test_blocks_in_use_are_never_evicted() -> None:
    engine = small(blocks=6)
    older = submit(engine, NINE, max_tokens=10)
    submit(engine, range(200, 209), max_tokens=10)  # in the end they would need ten blocks together
    its: set[int] = set()
    for _, result in drive(engine):
        for event in result.events:
            if isinstance(event, BlocksStored) and event.token_ids[0] < 200:
                its.update(event.hashes)
            if isinstance(event, BlocksRemoved):
                assert its.isdisjoint(event.hashes)
        if older in result.outputs and result.outputs[older].finish is not None:
            break
    assert its
    assert engine.gauges().preemptions > 0


def test_reset_is_told_with_the_next_step_and_refused_while_busy() -> None:
    engine = small()
    complete(engine, NINE)
    assert engine.reset_prefix_cache()
    assert engine.step(0.0) == StepResult(None, {}, [])  # idle: nobody hears of it yet
    cached, events = complete(engine, NINE)
    assert cached == 0
    assert events[0] == BlocksCleared()
    assert isinstance(events[1], BlocksStored)
    submit(engine, NINE)
    engine.step(0.0)
    assert not engine.reset_prefix_cache()


# -- time and queues


def test_prefill_is_paid_by_the_uncached_token_and_decoding_by_the_step() -> None:
    engine = small()
    submit(engine, NINE, max_tokens=3, now=5.0)
    assert [round(now, 6) for now, _ in drive(engine, 5.0)] == [5.009, 5.019, 5.029]
    submit(engine, NINE, now=6.0)
    assert [round(now, 6) for now, _ in drive(engine, 6.0)] == [6.001]  # one token was not cached


def test_decoding_together_takes_no_longer() -> None:
    engine = small(prefill_tokens_per_s=0)
    for _ in range(3):
        submit(engine, NINE, max_tokens=2)
    ends = [now for now, _ in drive(engine)]
    assert ends == [0.0, 0.01]


def test_slowdown_stretches_steps() -> None:
    engine = small()
    engine.slowdown = 3.0
    submit(engine, NINE)
    assert drive(engine)[0][0] == pytest.approx(0.027)


def test_a_long_prompt_is_computed_in_chunks_within_the_budget_beside_decoding() -> None:
    engine = small(blocks=100, max_num_batched_tokens=8)
    talker = submit(engine, [1, 2, 3], max_tokens=10)
    engine.step(0.0)
    reader = submit(engine, range(100, 120))
    steps = drive(engine, 0.003)
    said = [set(result.outputs) for _, result in steps]
    assert said[:4] == [{talker}, {talker}, {talker}, {talker, reader}]
    # with the talker's one token a step, the reader gets 7 + 7 + 6: one full block, then three, then five
    read = [tokens for _, result in steps for tokens in stores(result.events) if 100 <= tokens[0] < 200]
    assert [len(tokens) for tokens in read] == [4, 8, 8]


def test_sequences_beyond_the_limit_wait_their_turn() -> None:
    engine = small(max_num_seqs=1)
    first, second = submit(engine, NINE), submit(engine, NINE)
    engine.step(0.0)
    assert (engine.gauges().running, engine.gauges().waiting) == (1, 1)
    assert [list(result.outputs) for _, result in drive(engine)] == [[first], [second]]


def test_a_full_queue_refuses() -> None:
    engine = small(max_queued=1)
    submit(engine, NINE)
    assert engine.submit(SequenceRequest(NINE, 1), 0.0) == "queue full"


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (SequenceRequest([], 1), "empty prompt"),
        (SequenceRequest(range(64), 1), "too long"),
        (SequenceRequest([1], 1, adapter="nobody"), "unknown adapter"),
    ],
)
def test_what_can_never_be_done_is_refused(request_: SequenceRequest, why: str) -> None:
    assert small(blocks=16).submit(request_, 0.0) == why


def test_out_of_blocks_the_youngest_gives_way_and_comes_back() -> None:
    engine = small(blocks=4, prefill_tokens_per_s=0, decode_ms_per_token=0)
    older = submit(engine, [1, 2, 3], max_tokens=13)
    younger = submit(engine, [5, 6, 7], max_tokens=13)
    said: dict[RequestId, list[SequenceOutput]] = {older: [], younger: []}
    for _, result in drive(engine):
        for id, output in result.outputs.items():
            said[id].append(output)
    assert [len(outputs) for outputs in said.values()] == [13, 13]
    assert [outputs[-1].finish for outputs in said.values()] == ["length", "length"]
    assert engine.gauges().preemptions > 0
    assert engine.gauges().kv_usage == 0


def test_cancelling_frees_blocks_at_once_and_says_no_more() -> None:
    engine = small()
    id = submit(engine, NINE, max_tokens=50)
    waiting = submit(engine, NINE)
    engine.step(0.0)
    assert engine.gauges().kv_usage > 0
    assert engine.cancel(id, 0.0)
    assert engine.cancel(waiting, 0.0)
    assert not engine.cancel(id, 0.0)
    assert engine.gauges().kv_usage == 0
    assert [result.outputs for _, result in drive(engine)] == [{}]  # only what was announced before
    assert complete(engine, NINE)[0] == 8


# -- what is said


def test_answers_follow_from_prompt_and_seed() -> None:
    def said(tokens: Sequence[int], seed: int) -> list[int]:
        engine = small()
        submit(engine, tokens, max_tokens=8, seed=seed)
        return [output.token for _, result in drive(engine) for output in result.outputs.values()]

    assert said(NINE, 1) == said(NINE, 1)
    assert said(NINE, 1) != said(NINE, 2)
    assert said(NINE, 1) != said(NINE[1:], 1)


@pytest.mark.parametrize(
    ("request_", "tokens", "finish"),
    [
        (SequenceRequest(NINE, 3), [7, 7, 7], "length"),
        (SequenceRequest(NINE, 5, natural_tokens=3), [7, 7, 2], "stop"),
        (SequenceRequest(NINE, 3, natural_tokens=3), [7, 7, 2], "stop"),
        (SequenceRequest(NINE, 5, script=[8, 9]), [8, 9, 2], "stop"),
        (SequenceRequest(NINE, 2, script=[8, 9]), [8, 9], "length"),
    ],
)
def test_how_answers_end(request_: SequenceRequest, tokens: list[int], finish: str) -> None:
    engine = small(vocabulary=[7], end_token=2)
    engine.submit(request_, 0.0)
    outputs = [output for _, result in drive(engine) for output in result.outputs.values()]
    assert [output.token for output in outputs] == tokens
    assert [output.finish for output in outputs] == [None] * (len(tokens) - 1) + [finish]


def test_gauges_count_tokens() -> None:
    engine = small(adapters={"sql": "/s"})
    complete(engine, NINE, max_tokens=2)
    complete(engine, NINE, max_tokens=2)
    gauges = engine.gauges()
    assert (gauges.queried_tokens, gauges.hit_tokens, gauges.generated_tokens) == (18, 8, 4)
    assert (gauges.stopped, gauges.truncated, gauges.cancelled) == (0, 2, 0)
    submit(engine, NINE, adapter="sql")
    assert engine.gauges().waiting_adapters == ("sql",)


# -- whatever happens


@examples(150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1, 2]),  # which shared beginning
            st.integers(1, 20),  # tokens of it
            st.integers(1, 8),  # answer tokens
            st.integers(0, 3),  # steps before the next
            st.booleans(),  # cancelled then
        ),
        max_size=30,
    ),
    st.integers(8, 20),
)
def test_every_request_ends_and_events_balance(plan: list[tuple[int, int, int, int, bool]], blocks: int) -> None:
    """Nobody starves, no block is lost, and adding up stores and removals gives exactly the cached blocks."""
    engine = small(blocks=blocks, prefill_tokens_per_s=0, decode_ms_per_token=0, max_num_batched_tokens=7)
    due: set[RequestId] = set()
    held: dict[int, int] = {}

    def take(result: StepResult) -> None:
        for event in result.events:
            if isinstance(event, BlocksStored | BlocksRemoved):
                for label in event.hashes:
                    held[label] = held.get(label, 0) + (1 if isinstance(event, BlocksStored) else -1)
                    assert held[label] >= 0
        due.difference_update(id for id, output in result.outputs.items() if output.finish is not None)

    for beginning, length, answer, steps, cancelled in plan:
        id = submit(engine, [beginning * 100 + i for i in range(length)], answer)
        due.add(id)
        for _ in range(steps):
            take(engine.step(0.0))
        if cancelled and engine.cancel(id, 0.0):
            due.discard(id)
    for _, result in drive(engine):
        take(result)
    assert due == set()
    assert engine.gauges().kv_usage == 0
    assert sum(held.values()) == engine.gauges().cached_blocks
