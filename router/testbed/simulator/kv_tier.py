"""KV outside of the GPUs, by the names of its blocks: the pool that a fleet shares, or one instance's host memory.

Room for so many blocks, least recently used first out; saving or loading a prompt uses all of its blocks, its tail
first, so what is held is held with all before it. Each instance loads over a link of its own, one load after the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from router.testbed.simulator.scenario import LinkSpeed


class KvTier:
    """What lies in a pool or a host's memory."""

    def __init__(self, tokens: int, block_tokens: int) -> None:
        self._most = tokens // block_tokens
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self.away = False  # it answers nobody

    def __len__(self) -> int:
        return len(self._blocks)

    def held(self, names: Sequence[int]) -> int:
        """How many leading blocks are here."""
        if self.away:
            return 0
        blocks = self._blocks
        return bisect_left(names, True, key=lambda name: name not in blocks)

    def use(self, names: Sequence[int]) -> None:
        """Saved or loaded: what is new comes in, what was longest unused makes room."""
        if self.away:
            return
        blocks = self._blocks
        for name in reversed(names):
            blocks[name] = None
            blocks.move_to_end(name)
        while len(blocks) > self._most:
            blocks.popitem(last=False)


class TransferLink:
    """One instance's link: loads follow each other."""

    def __init__(self, link: LinkSpeed) -> None:
        self._link = link
        self._free_at_s = 0.0

    def loads(self, tokens: int, now: float) -> float:
        """When so many tokens will have come that are asked for now."""
        self._free_at_s = max(now, self._free_at_s) + self._link.base_ms / 1e3 + tokens / self._link.tokens_per_s
        return self._free_at_s
