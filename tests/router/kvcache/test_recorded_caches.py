"""Events of vLLM 0.32's own KVCacheManager, and the hashes that it held after each request.

`full-reports`: 11 blocks of 4 tokens and the null block; every request has `kv_cache_report_mode: full`.
`partial-entries`: full attention and Mamba, blocks of 16 tokens, hashes of 4 (`--prefix-match-unit`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from router.clock import ManualClock
from router.kvcache.bulk import SHORT
from router.kvcache.events import TargetId, Tier
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from tests.fakes.caches import RING, read_batch
from tests.paths import ROOT

A = TargetId("a/0")


class Recorded:
    """An index that follows a recording. `held`: the short hashes that it has on the GPU, and `real`: the engine."""

    def __init__(self, gpu_blocks: int) -> None:
        self.index = BlockIndex(RING)
        self.knowledge = KvIndexer(self.index, SpeculativeBlocks(5.0), ApproximateBlocks(100, 600.0), ManualClock(1.0))
        self.knowledge.join(A, "m", stream=True, replayable=False)
        self.knowledge.set_capacity(A, gpu_blocks, gpu_blocks)
        self.real: set[int] = set()

    def follow(self, name: str) -> Iterator[set[int]]:
        lines = (ROOT / f"tests/data/vllm-0.32-{name}.jsonl").read_text(encoding="utf-8").splitlines()
        for seq, line in enumerate(lines):
            recorded: dict[str, Any] = msgspec.json.decode(line)
            self.knowledge.on_batch(A, read_batch(recorded["events"], seq))
            self.real = {hash_ & SHORT for hash_ in recorded["held"]}
            yield self.held

    @property
    def held(self) -> set[int]:
        saved = self.index.snapshot(A)
        assert saved is not None
        tables = [table for table in saved.tables if table.tier == Tier.GPU]
        raw = b"".join(table.hashes + table.unnamed for table in tables)
        return {int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw), 8)}


def test_full_reports_leave_no_phantoms() -> None:
    recorded = Recorded(gpu_blocks=12)
    phantoms = [len(held - recorded.real) for held in recorded.follow("full-reports")]
    assert max(phantoms) <= 2, "before the first copy that did not fit"
    assert phantoms[-30:] == [0] * 30
    assert recorded.held == recorded.real


def test_entries_inside_blocks_are_no_blocks() -> None:
    recorded, blocks = Recorded(gpu_blocks=40), set()
    for held in recorded.follow("partial-entries"):
        assert recorded.knowledge.block_tokens(A) == 16
        assert held <= recorded.real
        blocks |= held
    stream = recorded.knowledge.describe_stream(A)
    assert stream is not None
    assert (stream.stats.orphans, stream.overfull) == (0, 0)
    partial = recorded.real - recorded.held
    assert not partial & blocks
    assert 0 < len(partial) <= stream.skipped["partial"]
