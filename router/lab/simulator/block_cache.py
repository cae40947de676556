"""KV by block names: one instance's cache, and the pool or host memory outside of its GPUs.

    capacity of a cache = named blocks in use + tokens of live requests that have no name yet + idle named blocks

Idle blocks can be evicted, least recently used first. A request's blocks become idle in reverse, so its tail goes
before its head and a shared prefix goes last. So all blocks before a cached block are cached too, and the cached
prefix of a prompt is found by bisection. Saving or loading a prompt outside uses its tail first, for the same
reason. The rules are those of `block_pool.py`, which has every physical block and every copy; here a block is its
name, and a block that is computed twice at the same time is cached once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence

from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Event, TailsStored, Tier
from router.lab.simulator.scenario import LinkSpeed
from router.lab.workloads.block_names import NamedTokens

TAILS = 1  # the group of tails in events; full attention is group 0


class BlockCache:
    """A cache of `tokens` in blocks of `block_tokens`. `tail_tokens`: memory of a tail; None: the model has full
    attention only. `events` collects stores and removals until `drain`.
    """

    def __init__(self, tokens: int, block_tokens: int, tail_tokens: int | None = None) -> None:
        self.capacity = tokens
        self.block_tokens = block_tokens
        self.tail_tokens = tail_tokens
        self.nameless_tokens = 0  # of live requests: still being computed, or too few for a block
        self.events: list[Event] = []
        self._uses: dict[int, int] = {}  # by name: number of live requests that use it
        # Blocks, and tails as `~name` of the block at their end; the next one to be evicted comes first.
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._tails = 0

    @property
    def live_tokens(self) -> int:
        return len(self._uses) * self.block_tokens + self.nameless_tokens

    @property
    def cached_blocks(self) -> int:
        return len(self._uses) + len(self._idle) - self._tails

    def count_held(self, names: Sequence[int]) -> int:
        """Return how many leading blocks of `names` are cached."""
        uses, idle = self._uses, self._idle
        return bisect_left(names, True, key=lambda name: name not in uses and name not in idle)

    def count_reusable(self, names: Sequence[int], held: int) -> int:
        """Return how many of these leading blocks, of which `held` are cached, a prompt re-uses."""
        if self.tail_tokens is None:
            return held
        idle = self._idle
        return next((blocks for blocks in range(held, 0, -1) if ~names[blocks - 1] in idle), 0)

    def keep_tail(self, name: int) -> None:
        """Keep the tail that ends with the block `name`, or mark it as just used."""
        if ~name in self._idle:
            self._idle.move_to_end(~name)
        else:
            self._idle[~name] = None
            self._tails += 1
            self.events.append(TailsStored([EngineHash(name)], TAILS, self.block_tokens, 1, False, False))

    def count_idle(self, names: Sequence[int]) -> int:
        """Return how many of these cached leading blocks no request uses; blocks in use come first."""
        uses = self._uses
        return len(names) - bisect_left(names, True, key=lambda name: name not in uses)

    def use(self, names: Sequence[int]) -> None:
        """Add a user to each of these cached blocks."""
        uses, idle = self._uses, self._idle
        for name in names:
            if name in uses:
                uses[name] += 1
            else:
                del idle[name]
                uses[name] = 1

    def name(self, names: Sequence[int], start: int, end: int) -> None:
        """Name the computed blocks `start` to `end` of a request, which uses those before `start` already."""
        uses, idle = self._uses, self._idle
        self.nameless_tokens -= (end - start) * self.block_tokens
        new = []
        for name in names[start:end]:
            if name in uses:
                uses[name] += 1
                continue
            if name in idle:
                del idle[name]
            else:
                new.append(name)
            uses[name] = 1
        self._announce(names, end, new)

    def release(self, names: Sequence[int]) -> None:
        """Remove a user from each of these blocks, given in prompt order."""
        uses, idle = self._uses, self._idle
        for name in reversed(names):
            left = uses[name] - 1
            if left:
                uses[name] = left
            else:
                del uses[name]
                idle[name] = None

    def fit(self) -> None:
        """Evict idle blocks and tails until the contents fit the capacity."""
        idle, size, tail_tokens = self._idle, self.block_tokens, self.tail_tokens or 0
        over = self.live_tokens + (len(idle) - self._tails) * size + self._tails * tail_tokens - self.capacity
        blocks: list[EngineHash] = []
        tails: list[EngineHash] = []
        while over > 0 and idle:
            name, _ = idle.popitem(last=False)
            if name >= 0:
                blocks.append(EngineHash(name))
                over -= size
            else:
                tails.append(EngineHash(~name))
                over -= tail_tokens
        self._tails -= len(tails)
        for gone, group in ((blocks, 0), (tails, TAILS)):
            if gone:
                self.events.append(BlocksRemoved(gone, Tier.GPU, group))

    def drain(self) -> list[Event]:
        """Return the events since the last call."""
        events, self.events = self.events, []
        return events

    def _announce(self, names: Sequence[int], end: int, new: list[int]) -> None:
        """Announce `new` blocks, the last ones before `end`: a cached block is cached with all before it."""
        if new:
            first, size = end - len(new), self.block_tokens
            parent = EngineHash(names[first - 1]) if first else None
            hashes, tokens = [EngineHash(name) for name in new], NamedTokens(new, size)
            self.events.append(BlocksStored(hashes, parent, tokens, size, Tier.GPU, 0, None, None, None))


class KvTier:
    """The blocks in the pool that a fleet shares, or in a host's memory, evicted least recently used first."""

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
    """One instance's own link to a `KvTier` or a peer; loads follow each other."""

    def __init__(self, link: LinkSpeed) -> None:
        self._link = link
        self._free_at_s = 0.0

    def load(self, tokens: int, now: float) -> float:
        """Return when a load of `tokens` that is requested now ends."""
        self._free_at_s = max(now, self._free_at_s) + self._link.base_ms / 1e3 + tokens / self._link.tokens_per_s
        return self._free_at_s
