"""The index alone: how fast it applies events, how fast a prompt is matched, and how much memory a block takes.

`measure` for ours, `measure_peer` for NVIDIA Dynamo's `RadixTree` (Rust, through its Python binding) in a process of
the benchmark's own venv, over the same events. CPU time of the process, its threads included. An event is: for us a
decoded one with its keys (`applied`), with token ids to chain keys from (`chained`), or a ZeroMQ message as vLLM sends
it (`decoded`); for Dynamo JSON bytes with hashes made before, because its binding takes nothing else.
"""

from __future__ import annotations

import gc
import json
import subprocess
import time
import tracemalloc
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import cast

import msgspec

from router.backends.vllm.kv_events import MalformedMessage, decode
from router.kvcache.block_keys import Keyring
from router.kvcache.events import BlocksRemoved, BlocksStored, CacheEvent, EngineHash, Key, TargetId, Tier
from router.kvcache.index import BlockIndex
from tests.bench import cache_events
from tests.bench.cache_events import TARGETS, Part, StoredRun, keys_of, make_runs
from tests.bench.figures import quantile

BLOCKS = 1_000_000
BLOCK_TOKENS = 16
QUERIES = 500
PEER_SCRIPT = Path(__file__).with_name("index_peer.py")
FILLS = (500_000, 700_000, 850_000, 1_000_000, 1_200_000, 1_390_000, 1_400_000)

TARGET = [TargetId(f"e{number}/0") for number in range(TARGETS)]


@dataclass(frozen=True)
class Matched:
    """CPU time of one match of 5,000 blocks against 64 targets, in us."""

    p50_us: float
    p99_us: float


@dataclass(frozen=True)
class Figures:
    """Figures of one repetition: blocks per second of CPU, `None` where not measured."""

    applied: float
    sessions: Matched  # agents' chains at one target, and partly at two others
    spread: Matched  # every chain at every target, to other depths: the hardest
    chained: float | None = None
    decoded: float | None = None
    removed: float | None = None  # one block per event, the last first


class GivenKeys(Keyring):
    """A keyring that takes the keys that are in place of an event's token ids."""

    def chain(
        self,
        parent: Key,
        token_ids: array[int] | Sequence[int],
        block_tokens: int,
        extras: tuple[bytes, ...] | None = None,
    ) -> list[Key]:
        return cast("list[Key]", token_ids)


def measure(repetitions: int, blocks: int = BLOCKS) -> list[Figures]:
    """Measure our index; about 40 s for each repetition."""
    return [_measure_once(blocks) for _ in range(repetitions)]


def measure_peer(python: Path, repetitions: int, blocks: int = BLOCKS) -> list[Figures]:
    """Measure Dynamo's index in the venv of `python`. Raises CalledProcessError when it does not run there."""
    command = [str(python), str(PEER_SCRIPT), str(repetitions), str(blocks), str(QUERIES)]
    made = subprocess.run(command, check=True, capture_output=True, text=True, cwd=PEER_SCRIPT.parents[2])
    return [msgspec.convert(figures, Figures) for figures in json.loads(made.stdout)]


def bytes_per_block(blocks: int = BLOCKS, chain_blocks: int = cache_events.CHAIN_BLOCKS) -> float:
    """Return the bytes per block for `blocks` different blocks over 64 targets, by tracemalloc. 10 s."""
    gc.collect()
    tracemalloc.start()
    try:
        index = _index()
        for event in make_runs(cache_events.apart(blocks, chain_blocks)):
            index.apply(TARGET[event.target], _stored(event))
        gc.collect()
        return tracemalloc.get_traced_memory()[0] / blocks
    finally:
        tracemalloc.stop()


def fills(sizes: Sequence[int] = FILLS) -> dict[int, float]:
    """Return `bytes_per_block` by blocks: dicts double when they are two thirds full, so one figure does not do."""
    return {blocks: bytes_per_block(blocks) for blocks in sizes}


def _measure_once(blocks: int) -> Figures:
    applied, removed = _applied(blocks)
    chained, decoded = _with_tokens(blocks // 4)
    return Figures(
        applied,
        _match(cache_events.sessions(blocks), shared=True),
        _match(cache_events.spread(blocks), shared=False),
        chained,
        decoded,
        removed,
    )


def _applied(blocks: int) -> tuple[float, float]:
    """Return blocks stored per second, and blocks removed per second, one by one, of the last of them."""
    events = [(TARGET[event.target], _stored(event)) for event in make_runs(cache_events.apart(blocks))]
    index = _index()
    applied = blocks / _cpu_s(lambda: _apply(index, events))
    gone = [
        (target, BlocksRemoved([hash_], Tier.GPU, 0))
        for target, event in reversed(events[-4_000:])
        for hash_ in reversed(event.hashes)
    ]
    return applied, len(gone) / _cpu_s(lambda: _apply(index, gone))


def _with_tokens(blocks: int) -> tuple[float, float]:
    """Return blocks per second with keys made from token ids, and from messages on."""
    ids = array("I", range(100_000, 100_000 + BLOCK_TOKENS * cache_events.EVENT_BLOCKS))
    events, messages = [], []
    for number, event in enumerate(make_runs(cache_events.apart(blocks))):
        own = array("I", ids)
        own[0] = number
        events.append((TARGET[event.target], _stored(event)._replace(token_ids=own[: BLOCK_TOKENS * len(event.keys)])))
        messages.append((TARGET[event.target], _message(number, events[-1][1])))
    index = BlockIndex(Keyring(1))
    _join(index)
    chained = blocks / _cpu_s(lambda: _apply(index, events))
    index = BlockIndex(Keyring(1))
    _join(index)

    def take() -> None:
        for target, frames in messages:
            batch = decode(frames)
            assert not isinstance(batch, MalformedMessage)
            for event in batch.events:
                assert isinstance(event, BlocksStored)
                index.apply(target, event)

    return chained, blocks / _cpu_s(take)


def _match(parts: list[Part], *, shared: bool) -> Matched:
    index = _index()
    _apply(index, [(TARGET[event.target], _stored(event)) for event in make_runs(parts, shared)])
    chains = sorted({part.chain for part in parts})
    prompts = [array("Q", keys_of(chain, shared)) for chain in chains]
    took = []
    gc.collect()
    for number in range(QUERIES):
        prompt = cast("Sequence[Key]", prompts[number * 7 % len(prompts)])
        began = time.thread_time_ns()
        index.match(prompt, TARGET)
        took.append((time.thread_time_ns() - began) / 1e3)
    return Matched(median(took), quantile(took, 0.99))


def _index() -> BlockIndex:
    index = BlockIndex(GivenKeys(1))
    _join(index)
    return index


def _join(index: BlockIndex) -> None:
    for target in TARGET:
        index.join(target, "m")


def _apply(index: BlockIndex, events: Sequence[tuple[TargetId, CacheEvent]]) -> None:
    for target, event in events:
        index.apply(target, event)


def _stored(event: StoredRun) -> BlocksStored:
    hashes = cast("list[EngineHash]", event.hashes)
    parent = cast("EngineHash | None", event.parent)
    return BlocksStored(hashes, parent, event.keys, BLOCK_TOKENS, Tier.GPU, 0, None, None, None)


def _message(seq: int, event: BlocksStored) -> list[bytes]:
    fields = {
        "type": "BlockStored",
        "block_hashes": event.hashes,
        "parent_block_hash": event.parent,
        "token_ids": list(event.token_ids),
        "block_size": event.block_tokens,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
    }
    return [b"", seq.to_bytes(8, "big"), msgspec.msgpack.encode([1e9 + seq, [fields], 0])]


def _cpu_s(work: Callable[[], object]) -> float:
    gc.collect()
    gc.freeze()
    gc.disable()  # millions of long-lived values: the router makes it wait too (`app.py`)
    began = time.process_time()
    try:
        work()
        return time.process_time() - began
    finally:
        gc.enable()
        gc.unfreeze()
