"""KV from outside, by hand: what is loaded, how long it takes, who waits, and what is kept for others.

Blocks of 4 tokens, 1 ms per computed token, 2 ms per load and 0.25 ms per loaded token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.kvcache.events import BlocksRemoved, BlocksStored
from router.lab.simulator.engine_types import EngineShape, RequestId, SequenceOutput, SequenceRequest, StepResult
from router.lab.simulator.step_engine import StepEngine
from tests.suites.properties import examples

NINE = [11, 12, 13, 14, 21, 22, 23, 24, 31]


def small(**shape: Any) -> StepEngine:
    quick = {"block_tokens": 4, "blocks": 16, "prefill_tokens_per_s": 1000.0, "decode_ms_per_token": 10.0}
    loads = {"load_tokens_per_s": 4000.0, "load_base_ms": 2.0}
    return StepEngine(EngineShape(**(quick | loads | shape)))


def submit(engine: StepEngine, tokens: Sequence[int], max_tokens: int = 1, now: float = 0.0, **more: Any) -> RequestId:
    id = engine.submit(SequenceRequest(tokens, max_tokens, **more), now)
    assert isinstance(id, int), id
    return id


def drive(engine: StepEngine, now: float = 0.0) -> list[tuple[float, StepResult]]:
    """Step until nothing is due: when what came."""
    steps = []
    for _ in range(1000):
        result = engine.step(now)
        if result.outputs or result.events:
            steps.append((round(now, 6), result))
        if result.next_wake_s is None:
            return steps
        now = result.next_wake_s
    raise AssertionError("still not idle")


def outputs(steps: Sequence[tuple[float, StepResult]]) -> dict[RequestId, SequenceOutput]:
    """The last of each request."""
    return {id: output for _, result in steps for id, output in result.outputs.items()}


def stores(steps: Sequence[tuple[float, StepResult]]) -> list[list[int]]:
    return [list(event.token_ids) for _, result in steps for event in result.events if isinstance(event, BlocksStored)]


# -- the pool


def test_a_load_takes_its_time_and_is_announced_as_an_ordinary_store() -> None:
    engine = small()
    id = submit(engine, NINE, external_tokens=8)
    steps = drive(engine)
    # 2 ms + 8 * 0.25 ms for the load, then 1 ms for the last token
    assert [at for at, _ in steps] == [0.005]
    assert stores(steps) == [NINE[:8]]
    assert outputs(steps)[id].cached_tokens == 8
    gauges = engine.gauges()
    assert (gauges.hit_tokens, gauges.external_queried_tokens, gauges.external_hit_tokens) == (0, 9, 8)
    assert (gauges.pool_loads, gauges.pool_loaded_blocks, gauges.pool_load_s) == (1, 2, pytest.approx(0.004))


def test_only_what_lies_beyond_its_own_cache_is_loaded() -> None:
    engine = small()
    drive(engine, submit(engine, NINE[:5]))  # one block
    id = submit(engine, NINE, now=1.0, external_tokens=8)
    steps = drive(engine, 1.0)
    assert [at for at, _ in steps] == [1.004]  # 2 ms + 4 * 0.25 ms + 1 ms
    assert stores(steps) == [NINE[4:8]]
    assert outputs(steps)[id].cached_tokens == 8
    gauges = engine.gauges()
    assert (gauges.hit_tokens, gauges.external_queried_tokens, gauges.external_hit_tokens) == (4, 5, 4)


@pytest.mark.parametrize("external", [0, 4, 8])
def test_what_is_no_longer_than_its_own_hit_is_not_loaded(external: int) -> None:
    engine = small()
    drive(engine, submit(engine, NINE))
    id = submit(engine, NINE, now=1.0, external_tokens=external)
    steps = drive(engine, 1.0)
    assert [at for at, _ in steps] == [1.001]
    assert outputs(steps)[id].cached_tokens == 8
    assert (engine.gauges().external_queried_tokens, engine.gauges().pool_loads) == (1, 0)


def test_nobody_asked_outside_is_not_counted() -> None:
    engine = small()
    submit(engine, NINE)
    drive(engine)
    assert engine.gauges().external_queried_tokens == 0


def test_others_are_computed_while_one_loads() -> None:
    engine = small(load_base_ms=20.0)
    loading = submit(engine, NINE, external_tokens=8)
    other = submit(engine, range(100, 105))
    assert engine.step(0.0).next_wake_s == pytest.approx(0.005)  # the other's five tokens
    assert (engine.gauges().waiting, engine.gauges().loading, engine.gauges().running) == (1, 1, 1)
    when = {id: at for at, result in drive(engine) for id in result.outputs}
    assert when == {other: 0.005, loading: 0.023}  # 20 ms + 2 ms + 1 ms


def test_loads_from_the_pool_go_one_after_the_other() -> None:
    engine = small()
    first, second = (submit(engine, [n, *NINE[1:]], external_tokens=8) for n in (1, 2))
    when = {id: at for at, result in drive(engine) for id in result.outputs}
    assert when == {first: 0.005, second: 0.009}  # loaded at 4 and 8 ms


def test_a_load_that_ends_amid_a_step_goes_on_with_the_next() -> None:
    engine = small(max_num_batched_tokens=6)
    loading = submit(engine, NINE, external_tokens=8)
    submit(engine, range(100, 112))  # two steps of 6 ms
    when = {id: at for at, result in drive(engine) for id in result.outputs}
    assert when[loading] == 0.013  # loaded at 4 ms; at 6 ms the one that runs already takes the whole budget again


def test_cancelling_a_load_gives_its_blocks_back() -> None:
    engine = small()
    id = submit(engine, NINE, external_tokens=8)
    engine.step(0.0)
    assert engine.gauges().kv_usage == 2 / 16
    assert engine.cancel(id, 0.0)
    assert (engine.gauges().kv_usage, engine.gauges().loading, engine.gauges().cancelled) == (0, 0, 1)
    assert drive(engine) == []
    assert engine.gauges().cached_blocks == 0


def test_loads_count_as_sequences() -> None:
    engine = small(max_num_seqs=1)
    first = submit(engine, NINE, external_tokens=8)
    second = submit(engine, [1, 2, 3])
    assert [list(result.outputs) for _, result in drive(engine)] == [[first], [second]]


def test_out_of_blocks_a_loaded_one_gives_way_and_computes_it_all_then() -> None:
    engine = small(blocks=4, prefill_tokens_per_s=0, decode_ms_per_token=0, load_tokens_per_s=0, load_base_ms=0)
    older = submit(engine, [1, 2, 3], max_tokens=13)
    younger = submit(engine, [5, 6, 7, 8, 9], max_tokens=8, external_tokens=4)
    said = outputs(drive(engine))
    assert {id: output.finish for id, output in said.items()} == {older: "length", younger: "length"}
    assert said[younger].cached_tokens == 4
    assert engine.gauges().preemptions > 0
    assert (engine.gauges().pool_loads, engine.gauges().kv_usage) == (1, 0)


# -- saving


def test_the_prompts_full_blocks_are_offered_once_and_nothing_that_was_said() -> None:
    engine = small(saves=True)
    submit(engine, NINE, max_tokens=8)
    offered = [save for _, result in drive(engine) for save in result.saves]
    (save,) = offered
    assert list(save.token_ids) == NINE[:8]
    assert save.digests == engine.digests(SequenceRequest(NINE, 1))
    first, second = save.announce(set(save.digests))
    assert (first.parent, second.parent) == (None, first.hashes[0])
    assert [list(one.token_ids) for one in (first, second)] == [NINE[:4], NINE[4:8]]
    assert save.announce({save.digests[1]}) == [second]


def test_nothing_is_offered_where_no_pool_is_or_no_block_is_full() -> None:
    for engine, prompt in ((small(), NINE), (small(saves=True), NINE[:3])):
        submit(engine, prompt, max_tokens=4)
        assert [save for _, result in drive(engine) for save in result.saves] == []


# -- pairs


def test_a_peers_kv_is_waited_for_in_blocks_that_are_taken() -> None:
    engine = small()
    id = submit(engine, NINE, external_tokens=9, source="peer")
    assert drive(engine) == []
    assert engine.gauges().kv_usage == 3 / 16
    assert engine.gauges().loading == 1
    engine.on_peer_ready(id, 5.0)
    steps = drive(engine, 5.0)
    # 2 ms + 9 * 0.25 ms; the last token is computed all the same: 1 ms
    assert [at for at, _ in steps] == [5.00525]
    assert stores(steps) == [NINE[:8]]
    assert outputs(steps)[id].cached_tokens == 9
    assert (engine.gauges().external_hit_tokens, engine.gauges().pool_loads) == (9, 0)


def test_a_peer_that_was_quicker_than_the_queue() -> None:
    engine = small(max_num_seqs=1)
    submit(engine, range(100, 105))
    engine.step(0.0)
    id = submit(engine, NINE, external_tokens=9, source="peer")
    engine.on_peer_ready(id, 0.001)
    when = {id: at for at, result in drive(engine) for id in result.outputs}
    assert when[id] == 0.01025  # admitted at 5 ms


@pytest.mark.parametrize("admitted", [True, False])
def test_what_a_peer_lost_is_computed_here(admitted: bool) -> None:
    engine = small()
    id = submit(engine, NINE, external_tokens=9, source="peer")
    if admitted:
        engine.step(0.0)
    engine.on_peer_lost(id)
    steps = drive(engine)
    assert [at for at, _ in steps] == [0.009]
    assert outputs(steps)[id].cached_tokens == 0
    assert stores(steps) == [NINE[:8]]


def test_blocks_are_kept_for_a_peer_until_they_are_freed() -> None:
    engine = small()
    id = submit(engine, NINE, keeps_after=("length",))
    assert outputs(drive(engine))[id].finish == "length"
    assert (engine.gauges().running, engine.gauges().kv_usage) == (0, 3 / 16)
    assert not engine.reset_prefix_cache()
    engine.free(id)
    engine.free(id)
    assert engine.gauges().kv_usage == 0


def test_an_answer_that_ended_otherwise_keeps_nothing() -> None:
    engine = small()
    id = submit(engine, NINE, max_tokens=5, natural_tokens=1, keeps_after=("length",))
    assert outputs(drive(engine))[id].finish == "stop"
    assert engine.gauges().kv_usage == 0


# -- whatever happens


@examples(150)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([0, 1]),  # which shared beginning
            st.integers(1, 20),  # tokens of it
            st.integers(1, 8),  # answer tokens
            st.sampled_from(["nobody", "pool", "peer", "lost peer", "late peer"]),
            st.integers(0, 20),  # tokens outside
            st.booleans(),  # kept for a peer, which fetches them in the end
            st.integers(0, 3),  # steps before the next
            st.booleans(),  # cancelled then
        ),
        max_size=25,
    ),
    st.integers(8, 20),
)
def test_every_request_ends_and_no_block_is_lost(plan: list[tuple[Any, ...]], blocks: int) -> None:
    engine = small(blocks=blocks, prefill_tokens_per_s=0, decode_ms_per_token=0, max_num_batched_tokens=7, saves=True)
    due: dict[RequestId, str] = {}
    held: dict[int, int] = {}
    ended: list[RequestId] = []

    def run(now: float, steps: int) -> float:
        for _ in range(steps):
            result = engine.step(now)
            for event in result.events:
                if isinstance(event, BlocksStored | BlocksRemoved):
                    for label in event.hashes:
                        held[label] = held.get(label, 0) + (1 if isinstance(event, BlocksStored) else -1)
                        assert held[label] >= 0
            ended.extend(id for id, output in result.outputs.items() if output.finish is not None)
            if result.next_wake_s is None:
                return now
            now = max(now, result.next_wake_s)
        return now

    now = 0.0
    for beginning, length, answer, source, outside, keeps, steps, cancelled in plan:
        external = None if source == "nobody" else min(outside, length) if "peer" in source else outside // 4 * 4
        if source == "pool":
            external = min(external or 0, (length - 1) // 4 * 4)
        prompt = [beginning * 100 + i for i in range(length)]
        more = {"external_tokens": external, "source": "peer" if "peer" in source else "pool"}
        id = submit(engine, prompt, answer, now, keeps_after=("length",) if keeps else (), **more)
        due[id] = source
        if source == "peer":
            engine.on_peer_ready(id, now)
        now = run(now, steps)
        if cancelled and engine.cancel(id, now):
            del due[id]
    for _ in range(1 + len(plan)):  # what waits for room may only get it when others have been fetched
        for id, source in due.items():
            if source == "lost peer":
                engine.on_peer_lost(id)
            elif source == "late peer":
                engine.on_peer_ready(id, now)
        now = run(now, 10_000)
        for id in ended:
            engine.free(id)
    assert set(due) <= set(ended)
    gauges = engine.gauges()
    assert (gauges.kv_usage, gauges.waiting, gauges.running) == (0, 0, 0)
    assert sum(held.values()) == gauges.cached_blocks
    assert gauges.hit_tokens + gauges.external_hit_tokens <= gauges.prompt_tokens
