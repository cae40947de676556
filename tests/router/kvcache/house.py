"""A house with two targets, whose caches tell of themselves: blocks of 4 tokens unless said otherwise."""

from __future__ import annotations

from array import array
from typing import Any

from router.clock import ManualClock
from router.kvcache.events import BlocksPooled, BlocksStored, TargetId
from router.kvcache.index import BlockIndex
from router.kvcache.indexer import KvIndexer, SentPrompt
from router.kvcache.memory_budget import MemoryBudget
from router.kvcache.overlap_estimate import OverlapEstimate, OverlapEstimator
from router.kvcache.snapshot_format import SavedTargetBlocks
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks
from router.kvcache.tokenized_prompt import TokenizedPrompt
from scorers.contract import Overlap
from tests.fakes.caches import RING, Cache, prompt_of

A, B = TargetId("a/0"), TargetId("b/0")
TTL_S, APPROXIMATE_TTL_S = 5.0, 600.0
IDS = list(range(100, 118))  # 18 tokens: 4 full blocks and a bit
PROMPT = prompt_of(IDS)


class House:
    """Knowledge of `A` and `B` (with a trusted stream each, unless told otherwise), and what one asks of it."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0, wall=1000.0)
        self.witnessed: list[tuple[str, BlocksStored | BlocksPooled]] = []
        self._parts = BlockIndex(RING), SpeculativeBlocks(TTL_S), ApproximateBlocks(10_000, APPROXIMATE_TTL_S)
        self.memory = MemoryBudget(1024 * 1024)  # of prompts
        self.knowledge = KvIndexer(*self._parts, self.clock, memory=self.memory)
        self.knowledge.observer = self

    def afresh(self) -> OverlapEstimator:
        """What is believed, by somebody who remembers nothing of what was believed before."""
        return OverlapEstimator(*self._parts, self.knowledge._states)

    def on_stored(self, model: str, event: BlocksStored) -> None:
        self.witnessed.append((model, event))

    def on_pooled(self, model: str, event: BlocksPooled) -> None:
        self.witnessed.append((model, event))

    def join(self, target: TargetId, *, stream: bool = True, replayable: bool = False) -> Cache:
        self.knowledge.join(target, "m", stream=stream, replayable=replayable)
        cache = Cache()
        if stream and not replayable:
            self.knowledge.on_batch(target, cache.batch())  # the first batch that it ever made: nothing was missed
        return cache

    def belief(
        self, target: TargetId, prompt: TokenizedPrompt = PROMPT, size: int = 4, *, believed: bool = True
    ) -> OverlapEstimate:
        distrusted = frozenset() if believed else frozenset([target])
        return self.knowledge.estimate_overlaps(prompt, {target: size}, distrusted)[target]

    def overlap(self, target: TargetId, prompt: TokenizedPrompt = PROMPT, **asked: Any) -> Overlap:
        overlap = self.belief(target, prompt, **asked).overlap
        assert overlap is not None
        return overlap

    def send(self, target: TargetId, prompt: TokenizedPrompt = PROMPT, **asked: Any) -> SentPrompt:
        return self.knowledge.add_sent(target, prompt, self.belief(target, prompt, **asked))


def in_order(saved: SavedTargetBlocks | None) -> SavedTargetBlocks | None:
    """Return the same blocks, sorted by their hashes: the tables keep no order."""
    if saved is None:
        return None
    tables = []
    for table in saved.tables:
        hashes, keys = array("Q", table.hashes), array("Q", table.keys)
        pairs = sorted(zip(hashes, keys, strict=True))
        sorted_hashes, sorted_keys = (array("Q", [pair[at] for pair in pairs]).tobytes() for at in (0, 1))
        unnamed = array("Q", sorted(array("Q", table.unnamed))).tobytes()
        tables.append(table._replace(hashes=sorted_hashes, keys=sorted_keys, unnamed=unnamed))
    return saved._replace(tables=tables)


def late(house: House, capacity_blocks: int | None = 6) -> Cache:
    cache = house.join(A, stream=False)
    house.knowledge.join(A, "m", stream=True, replayable=False)
    cache.seq = 41
    house.knowledge.on_batch(A, cache.batch())
    if capacity_blocks is not None:
        house.knowledge.set_capacity(A, capacity_blocks)
    return cache


def tokens(overlap: Overlap) -> tuple[int, int, int, int]:
    return overlap[:4]
