"""The KV blocks of one simulated engine: which are in use, which hold a reusable prefix, which is taken next.

A block in use has a reference per request. A free block is in a queue to be taken again, and until then its
contents can still be hit. That queue is the whole eviction policy:

    front: never hashed, reused at once   ...   hashed, oldest release first   ...   back: released last

A request's blocks are released in reverse, so its tail is evicted before its head and a shared prefix goes last.
The same contents may be in several blocks (copies); a store is announced for each and a removal for each. All KV cache
groups of a model take their blocks from the one pool. Source of the rules: vLLM v1/core/block_pool.py.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from router.kvcache.events import BlocksCleared, BlocksRemoved, EngineHash, Event, Tier

GroupLabel = tuple[int, EngineHash]


class BlockPool:
    """A pool of `blocks` physical blocks, all free and empty. `events` collects removals and stores until
    `drain`.
    """

    def __init__(self, blocks: int) -> None:
        self.blocks = blocks
        self.events: list[Event] = []
        self._references = [0] * blocks
        self._labels: list[GroupLabel | None] = [None] * blocks
        self._copies: dict[GroupLabel, dict[int, None]] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(blocks))

    @property
    def free(self) -> int:
        """Number of blocks that no request uses."""
        return len(self._free)

    @property
    def cached_blocks(self) -> int:
        """Blocks that hold a hashed prefix, copies counted, in use or not."""
        return sum(len(copies) for copies in self._copies.values())

    def find(self, label: EngineHash, group: int = 0) -> int | None:
        """Return a block that is cached under a label; None if there is none."""
        copies = self._copies.get((group, label))
        return None if copies is None else next(iter(copies))

    def find_leading(self, labels: Iterable[EngineHash], group: int = 0) -> list[int]:
        """Return one block for each leading label that is cached."""
        found = []
        for label in labels:
            if (block := self.find(label, group)) is None:
                break
            found.append(block)
        return found

    def count_free(self, blocks: Iterable[int]) -> int:
        """Return how many of these blocks are in the free queue."""
        return sum(1 for block in blocks if self._references[block] == 0)

    def touch(self, blocks: Iterable[int]) -> None:
        """Add a reference to each of these blocks, and remove them from the free queue."""
        for block in blocks:
            if self._references[block] == 0:
                del self._free[block]
            self._references[block] += 1

    def take(self, count: int) -> list[int]:
        """Take the next `count` blocks from the free queue and empty them. The caller has checked `free`."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._references[block] = 1
            self._evict(block)
        return taken

    def label(self, blocks: Sequence[int], labels: Sequence[EngineHash], group: int = 0) -> None:
        """Make these full blocks of a group available under their labels."""
        for block, label in zip(blocks, labels, strict=True):
            self._labels[block] = group, label
            self._copies.setdefault((group, label), {})[block] = None

    def release(self, blocks: Sequence[int]) -> None:
        """Remove a reference from each of a request's blocks, given in prompt order."""
        for block in reversed(blocks):
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free[block] = None
                if self._labels[block] is None:
                    self._free.move_to_end(block, last=False)

    def reset(self) -> bool:
        """Forget every cached prefix. Return False, and change nothing, while any block is in use."""
        if len(self._free) != self.blocks:
            return False
        self._copies.clear()
        self._labels = [None] * self.blocks
        self.events.append(BlocksCleared())
        return True

    def drain(self) -> list[Event]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def _evict(self, block: int) -> None:
        label = self._labels[block]
        if label is None:
            return
        copies = self._copies[label]
        del copies[block]
        if not copies:
            del self._copies[label]
        self._labels[block] = None
        group, hash_ = label
        self.events.append(BlocksRemoved(hashes=[hash_], tier=Tier.GPU, group=group))
