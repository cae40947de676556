"""The event storm's publisher says what engines say: the router's own reader takes it, and the counts are right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing

import pytest
import zmq

from router.backends.vllm.kv_events import decode
from router.kvcache.events import BlocksCleared, BlocksRemoved, BlocksStored, EventBatch
from tests.bench.publisher import BLOCK_TOKENS, EVENT_BLOCKS, STEP_BLOCKS, STEP_EVENTS, Target, pour

HEARD_MS = 5000
Listen = Callable[[Target], zmq.Socket[bytes]]


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def context(opened: ExitStack) -> zmq.Context[zmq.Socket[bytes]]:
    made: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    opened.callback(made.term)
    return made


@pytest.fixture
def targets(opened: ExitStack, context: zmq.Context[zmq.Socket[bytes]]) -> list[Target]:
    return [opened.enter_context(closing(Target(context, number))) for number in range(4)]


@pytest.fixture
def listening(opened: ExitStack, context: zmq.Context[zmq.Socket[bytes]]) -> Listen:
    """Makes an ear that is known to hear: until it does, the target is cleared, which changes nothing."""

    def listen(target: Target) -> zmq.Socket[bytes]:
        ear = opened.enter_context(closing(context.socket(zmq.SUB)))
        ear.subscribe(b"")
        ear.connect(f"tcp://127.0.0.1:{target.port}")
        for _ in range(HEARD_MS // 20):
            target.clear()
            if ear.poll(20):
                break
        while ear.poll(100):
            ear.recv_multipart()
        return ear

    return listen


def heard(ear: zmq.Socket[bytes]) -> EventBatch:
    assert ear.poll(HEARD_MS)
    batch = decode(ear.recv_multipart())
    assert isinstance(batch, EventBatch)
    return batch


def test_a_step_is_sixteen_prompts_that_nobody_else_has(targets: list[Target], listening: Listen) -> None:
    stored = []
    for target in targets[:2]:
        ear = listening(target)
        assert target.step(capacity=10_000) == STEP_BLOCKS
        events = heard(ear).events
        stored += [event for event in events if isinstance(event, BlocksStored)]
        assert len(events) == STEP_EVENTS
    assert len(stored) == 2 * STEP_EVENTS
    assert all(len(event.token_ids) == BLOCK_TOKENS * EVENT_BLOCKS for event in stored)
    assert len({tuple(event.token_ids[:BLOCK_TOKENS]) for event in stored}) == len(stored)
    assert len({name for event in stored for name in event.hashes}) == 2 * STEP_BLOCKS


def test_a_full_target_drops_its_oldest_blocks_first(targets: list[Target], listening: Listen) -> None:
    target = targets[0]
    ear = listening(target)
    target.step(capacity=STEP_BLOCKS)
    first = heard(ear)
    assert target.step(capacity=STEP_BLOCKS) == 2 * STEP_BLOCKS  # as many go as come
    second = heard(ear)
    gone = [name for event in second.events if isinstance(event, BlocksRemoved) for name in event.hashes]
    assert gone == [name for event in first.events if isinstance(event, BlocksStored) for name in event.hashes]
    assert second.seq == first.seq + 1
    assert len(target.held) == STEP_BLOCKS


def test_clearing_says_so(targets: list[Target], listening: Listen) -> None:
    target = targets[0]
    ear = listening(target)
    target.step(capacity=10_000)
    target.clear()
    heard(ear)
    assert heard(ear).events == [BlocksCleared()]
    assert not target.held


def test_pouring_keeps_its_rate_and_goes_round(targets: list[Target]) -> None:
    told = pour(targets, blocks_per_s=STEP_BLOCKS * 200, seconds=0.1, capacity=10_000)
    # 200 steps a second for a tenth of a second: 20 steps, five of each target
    assert told["blocks"] == 20 * STEP_BLOCKS
    assert [len(target.held) for target in targets] == [5 * STEP_BLOCKS] * 4
    assert told["took_s"] >= 0.095  # the last step is due one interval of 5 ms before the end
