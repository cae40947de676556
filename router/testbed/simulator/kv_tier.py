"""KV outside of the GPUs, by block names: the pool that a fleet shares, or one instance's host memory.

The least recently used block is evicted first. Saving or loading a prompt uses all of its blocks, its tail first, so a
block is held with all blocks before it. Each instance has its own link, over which loads follow each other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from router.testbed.simulator.scenario import LinkSpeed


class KvTier:
    """The blocks in a pool or a host's memory."""

    def __init__(self, tokens: int, block_tokens: int) -> None:
        self._capacity = tokens // block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.away = False  # it answers no request

    def __len__(self) -> int:
        return len(self._blocks)

    def count_held(self, names: Sequence[int]) -> int:
        """Return how many leading blocks of `names` are held; 0 while away."""
        if self.away:
            return 0
        blocks = self._blocks
        return bisect_left(names, True, key=lambda name: name not in blocks)

    def use(self, names: Sequence[int]) -> None:
        """Save or load these blocks: add new ones, and evict those unused for longest."""
        if self.away:
            return
        blocks = self._blocks
        for name in reversed(names):
            blocks[name] = None
            blocks.move_to_end(name)
        while len(blocks) > self._capacity:
            blocks.popitem(last=False)


class TransferLink:
    """One instance's link; loads follow each other."""

    def __init__(self, link: LinkSpeed) -> None:
        self._link = link
        self._free_at_s = 0.0

    def load(self, tokens: int, now: float) -> float:
        """Return when a load of `tokens` that is requested now ends."""
        self._free_at_s = max(now, self._free_at_s) + self._link.base_ms / 1e3 + tokens / self._link.tokens_per_s
        return self._free_at_s
