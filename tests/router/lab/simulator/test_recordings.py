"""The simulated engine against recordings of a real vLLM 0.32 that was sent the same requests: event by event.

`t1` has int hashes made with `sha256` and seed "0", as the simulation makes them, so even the labels must be equal.
`t2` has blocks of 32 tokens, a LoRA, and a cache of 40 blocks (one of which vLLM never uses): 100 evictions.
`pool` is two engines that share a Mooncake Store: A computes and saves a prompt, B loads it.
`hybrid-evict` has two groups with a window of 128 tokens beside full attention, and a cache of 400 blocks of 32.
"""

from __future__ import annotations

import gzip
import json
import struct
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from router.backends.vllm.kv_events import decode
from router.kvcache.events import BlocksCleared, BlocksPooled, BlocksRemoved, BlocksStored, Event, EventBatch
from router.lab.emulator.kv_publisher import encode_batch
from router.lab.simulator.engine_types import EngineShape, SequenceRequest, StepResult
from router.lab.simulator.step_engine import StepEngine
from tests.paths import FRAMES, ROOT

A = [(7 * i) % 4000 + 3 for i in range(300)]
B = [(11 * i + 5) % 4000 + 3 for i in range(300)]


def recorded(run: str, label: str) -> list[list[dict[str, Any]]]:
    """The events of each message recorded under that label."""
    (path,) = FRAMES.glob(f"{run}-{label}-*.bin")
    return [msgspec.msgpack.decode(parts[2])[1] for parts in _messages(path.read_bytes())]


def _messages(data: bytes) -> Iterator[list[bytes]]:
    at = 0
    while at < len(data):
        (count,) = struct.unpack_from("<I", data, at)
        at += 4
        parts = []
        for _ in range(count):
            (size,) = struct.unpack_from("<I", data, at)
            parts.append(data[at + 4 : at + 4 + size])
            at += 4 + size
        yield parts


def prompt_of(messages: list[list[dict[str, Any]]], more: int) -> list[int]:
    """The prompt behind the one store of a recording; its last, part-filled block was never announced."""
    (stored,) = (event for event in messages[0] if event["type"] == "BlockStored")
    return [*stored["token_ids"], *range(more)]


def simulated(engine: StepEngine, request: SequenceRequest) -> list[list[Event]]:
    """The batches that one request makes alone."""
    assert isinstance(engine.submit(request, 0.0), int)
    batches, now = [], 0.0
    while True:
        result = engine.step(now)
        if result.events:
            batches.append(result.events)
        if result.next_wake_s is None:
            return batches
        now = result.next_wake_s


def outline(event: Event | dict[str, Any]) -> tuple[Any, ...]:
    """What must be equal whatever the hash algorithm."""
    match event:
        case BlocksStored():
            has_parent = event.parent is not None
            return (
                "BlockStored",
                len(event.hashes),
                has_parent,
                list(event.token_ids),
                event.block_tokens,
                event.adapter,
            )
        case BlocksRemoved():
            return "BlockRemoved", len(event.hashes)
        case BlocksCleared():
            return ("AllBlocksCleared",)
        case {"type": "BlockStored"}:
            parent = event["parent_block_hash"] is not None
            tokens, size = event["token_ids"], event["block_size"]
            return "BlockStored", len(event["block_hashes"]), parent, tokens, size, event["lora_name"]
        case {"type": "BlockRemoved"}:
            return "BlockRemoved", len(event["block_hashes"])
    return (event["type"],)


def requests(run: str, block_tokens: int) -> Iterator[tuple[str, list[SequenceRequest]]]:
    """What the recording session sent, by label. The answer of `04` is taken from the recording."""
    (_, [second]) = recorded(run, "04")
    said = second["token_ids"][500 - 500 // block_tokens * block_tokens :]
    yield "01", [SequenceRequest(A, 4), SequenceRequest(A, 4)]  # the repetition was recorded as `02`: nothing
    yield "03", [SequenceRequest(B, 4)]
    yield "04", [SequenceRequest(A + B[:200], 40, script=said + [9] * 40)]
    yield "05", [SequenceRequest(A, 4, salt="tenant-x")]
    yield "06", [SequenceRequest(prompt_of(recorded(run, "06"), 11), 4)]
    yield "07", [SequenceRequest(prompt_of(recorded(run, "07"), 5), 4)]
    if run == "t2":
        yield "08", [SequenceRequest(A, 4, adapter="lora1")]
    yield "09", [SequenceRequest([(13 * i + 17 * k) % 4000 + 3 for i in range(400)], 4) for k in range(8)]


@pytest.mark.parametrize(("run", "block_tokens", "blocks"), [("t1", 128, 600), ("t2", 32, 39)])
def test_announces_what_the_real_engine_announced(run: str, block_tokens: int, blocks: int) -> None:
    adapters = {"lora1": "/adapters/lora1"}
    engine = StepEngine(EngineShape(block_tokens=block_tokens, blocks=blocks, adapters=adapters, hash_seed="0"))
    exact = 0
    for label, sent in requests(run, block_tokens):
        real = recorded(run, label)
        ours = [batch for request in sent for batch in simulated(engine, request)]
        assert [[outline(e) for e in batch] for batch in ours] == [[outline(e) for e in batch] for batch in real], label
        if run == "t1":
            assert _labels(ours) == [event["block_hashes"] for batch in real for event in batch]
            exact += len(_labels(ours))
    assert engine.reset_prefix_cache()
    (batch,) = simulated(engine, SequenceRequest(A, 4))
    assert [outline(event) for event in batch] == [outline(event) for event in recorded(run, "11")[0]]
    assert exact == (15 if run == "t1" else 0)


def pool_engine() -> StepEngine:
    return StepEngine(EngineShape(block_tokens=128, blocks=600, hash_seed="0", saves=True))


def decoded(label: str) -> list[list[Event]]:
    """The events of each message as the router reads them; their labels are made of the whole digests."""
    batches = []
    for frames in _messages((FRAMES / f"pool-{label}.bin").read_bytes()):
        batch = decode(frames)
        assert isinstance(batch, EventBatch)
        batches.append([plain(event) for event in batch.events])
    return batches


def plain(event: Event) -> Event:
    assert isinstance(event, BlocksStored | BlocksPooled)
    return event._replace(token_ids=list(event.token_ids), hashes=list(event.hashes))


@pytest.mark.parametrize("label", ["A-cold-A", "A-next-A", "B-next-B"])
def test_a_computed_prompt_is_saved_and_announced_block_by_block(label: str) -> None:
    stored, saved = decoded(label)
    assert isinstance(stored[0], BlocksStored)
    result = finished(pool_engine(), SequenceRequest(stored[0].token_ids, 1))
    assert [plain(event) for event in result.events] == stored
    (save,) = result.saves
    assert [plain(event) for event in save.announce(set(save.digests))] == saved
    assert len(saved) == {"A-cold-A": 8, "A-next-A": 2, "B-next-B": 2}[label]


def test_what_is_loaded_from_the_pool_is_announced_as_the_real_engine_did() -> None:
    (events,) = decoded("B-pool-B")
    prompt = [token for event in events if isinstance(event, BlocksStored) for token in event.token_ids]
    assert len(prompt) == 1024  # all eight blocks were in the pool, and one less was loaded
    result = finished(pool_engine(), SequenceRequest(prompt, 1, external_tokens=896))
    assert [plain(event) for event in result.events] == events
    (output,) = result.outputs.values()
    assert output.cached_tokens == 896
    (save,) = result.saves
    assert save.announce(set()) == []  # nothing new in the pool: B announced nothing


def finished(engine: StepEngine, request: SequenceRequest) -> StepResult:
    """What came of its only step."""
    engine.submit(request, 0.0)
    result = engine.step(0.0)
    while not result.outputs:
        assert result.next_wake_s is not None
        result = engine.step(result.next_wake_s)
    return result


def hybrid_requests() -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each recorded request of a hybrid model, and the events that it caused."""
    request: dict[str, Any] | None = None
    events: list[dict[str, Any]] = []
    with gzip.open(ROOT / "tests/data/vllm-0.32-hybrid-evict.jsonl.gz", "rt") as lines:
        for row in map(json.loads, lines):
            if "batch" in row:
                events += row["batch"]["events"]
            elif "request" in row:
                if request is not None:
                    yield request, events
                request, events = row["request"] | {"cached_tokens": row["cached_tokens"]}, []
    assert request is not None
    yield request, events


def test_a_hybrid_engine_keeps_and_announces_what_the_real_one_did() -> None:
    """Its hashes, too: tails and junctions, masked events, and evictions from all groups in order."""
    windows, seen = (128, 128), 0
    engine = StepEngine(
        EngineShape(block_tokens=32, blocks=399, sliding_windows=windows, hash_algo="sha256_cbor", max_num_seqs=1)
    )
    for request, recorded_events in hybrid_requests():
        ids, cached = request["token_ids"], request["cached_tokens"]
        full = [event for event in recorded_events if event["type"] == "BlockStored" and event["group_idx"] == 2]
        answer = [*ids[:cached], *(token for event in full for token in event["token_ids"])][len(ids) :]
        script = [*answer, *[9] * request["max_tokens"]][: request["max_tokens"]]
        delivered, events = finish_and_read(engine, SequenceRequest(ids, request["max_tokens"], script=script))
        assert delivered == cached, request["label"]
        assert events == recorded_events, request["label"]
        seen += len(events)
    assert seen > 900


def finish_and_read(engine: StepEngine, request: SequenceRequest) -> tuple[int, list[dict[str, Any]]]:
    """Return the cached tokens of a request, and its events as they are on the wire."""
    assert isinstance(engine.submit(request, 0.0), int)
    events: list[dict[str, Any]] = []
    cached, now = 0, 0.0
    while True:
        result = engine.step(now)
        events += msgspec.msgpack.decode(encode_batch(result.events, 0.0, 0, form="map", adapter_ids={}))[1]
        for output in result.outputs.values():
            cached = output.cached_tokens
        if result.next_wake_s is None:
            return cached, events
        now = result.next_wake_s


def _labels(batches: list[list[Event]]) -> list[list[int]]:
    return [
        list(event.hashes) for batch in batches for event in batch if isinstance(event, BlocksStored | BlocksRemoved)
    ]
