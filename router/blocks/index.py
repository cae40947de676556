"""Which target holds which block: the one answer that everything else here exists for.

    key -> one bit per target that holds it, for each tier        (shared by all targets: what a request reads)
    target -> group -> engine hash -> our key, copies per tier    (what an event writes)

A target is a bit, so "who still holds the prefix" is one AND per block, however many targets there are. Engines
announce and remove *physical copies* and keep duplicates of one hash, so copies are counted and a bit falls with the
last one. A block whose parent is unknown cannot be named: its copies are counted, and its tokens wait (bounded) until
the parent turns up. It is never hung on the root.

Forgetting a target costs nothing at once: its bit is retired, so no match can see it, and the following events each
clean a slice of what it left behind. A restarted engine with 200,000 blocks would otherwise stop the loop for 50 ms.

All models and block sizes share the index: root and block length make their keys distinct. Nothing here knows time,
sequence numbers or wire formats. `naive.py` says the same without the cleverness, and tests hold the two together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import repeat
from operator import or_
from sys import getsizeof
from typing import NamedTuple

from router.blocks.events import CacheEvent, Cleared, EngineHash, Key, Removed, Stored, TargetId, Tier
from router.blocks.keys import Keyring

SWEEP_BLOCKS = 128  # cleaned per event: about 100 us
INT_BYTES = 36  # a CPython int of 64 bits


class Held(NamedTuple):
    """Leading blocks that a target holds without a hole. Cumulative: `cpu` counts blocks in GPU or CPU, and so on."""

    gpu: int
    cpu: int
    disk: int


class IndexStats(NamedTuple):
    blocks: tuple[int, int, int]  # distinct keys per tier
    orphans: int  # blocks waiting for an unknown parent
    bytes: int  # an estimate: this target's own tables, and its share of the common ones


class _Group:
    """One KV cache group of one target."""

    __slots__ = ("copies", "keys")

    def __init__(self) -> None:
        self.copies: tuple[dict[EngineHash, int], ...] = ({}, {}, {})  # by tier, never 0
        self.keys: dict[EngineHash, Key] = {}  # of hashes with a known chain and a copy anywhere

    def cached(self, hash_: EngineHash) -> bool:
        gpu, cpu, disk = self.copies
        return hash_ in gpu or hash_ in cpu or hash_ in disk


class _Shelf:
    """All that one target holds."""

    __slots__ = ("bit", "block_tokens", "blocks", "groups", "model", "orphans", "twins", "waiting")

    def __init__(self, model: str, bit: int) -> None:
        self.model = model
        self.bit = bit
        self.block_tokens: int | None = None
        self.blocks = [0, 0, 0]
        self.groups: dict[int, _Group] = {}
        self.twins: dict[tuple[Tier, Key], int] = {}  # further hashes, of other groups, that mean a key held already
        self.waiting: dict[tuple[int, EngineHash], list[Stored]] = {}  # by the parent (of a group) they wait for
        self.orphans = 0  # blocks in `waiting`


class Index:
    """Knows what every joined target holds. `orphan_blocks` bounds what waits for its parent, per target."""

    def __init__(self, keyring: Keyring, orphan_blocks: int = 10_000) -> None:
        self._keyring = keyring
        self._orphan_blocks = orphan_blocks
        self._shelves: dict[TargetId, _Shelf] = {}
        self._targets: dict[int, TargetId] = {}  # by bit
        self._holders: tuple[dict[Key, int], ...] = ({}, {}, {})  # by tier: key -> bits
        self._blocks = [0, 0, 0]  # by tier, of all shelves
        self._retired: deque[tuple[int, list[_Group]]] = deque()
        self._free_bits: list[int] = []
        self._bits = 0  # ever made

    # Who is there

    def join(self, target: TargetId, model: str) -> None:
        """`target` holds nothing yet; its blocks are of `model`. Joining again forgets."""
        self.leave(target)
        self._open(target, model)

    def leave(self, target: TargetId) -> None:
        """Nothing is known of `target` any more; no harm if nothing was."""
        if (shelf := self._shelves.pop(target, None)) is not None:
            del self._targets[shelf.bit]
            for tier in Tier:
                self._blocks[tier] -= shelf.blocks[tier]
            self._retired.append((shelf.bit, list(shelf.groups.values())))

    def forget(self, target: TargetId) -> None:
        """`target` (joined) holds nothing, in any tier. Its block size is kept until it tells another."""
        shelf = self._shelves[target]
        self.leave(target)
        self._open(target, shelf.model).block_tokens = shelf.block_tokens

    def _open(self, target: TargetId, model: str) -> _Shelf:
        if self._free_bits:
            bit = self._free_bits.pop()
        else:
            bit = 1 << self._bits
            self._bits += 1
        self._targets[bit] = target
        shelf = self._shelves[target] = _Shelf(model, bit)
        return shelf

    def _sweep(self) -> None:
        """Takes a slice of a retired bit's blocks off the common tables; the bit is free when none is left."""
        bit, groups = self._retired[0]
        for _ in range(SWEEP_BLOCKS):
            while groups and not groups[-1].keys:
                groups.pop()
            if not groups:
                self._free_bits.append(bit)
                self._retired.popleft()
                return
            hash_, key = groups[-1].keys.popitem()
            for copies, holders in zip(groups[-1].copies, self._holders, strict=True):
                if copies.pop(hash_, 0) and (bits := holders.get(key, 0)) & bit:
                    _clear(holders, key, bits ^ bit)

    # What events say

    def apply(self, target: TargetId, event: CacheEvent) -> list[Key]:
        """Takes in one event of `target` (joined: KeyError). Returns the keys that entered its GPU tier by this."""
        if self._retired:
            self._sweep()
        shelf = self._shelves[target]
        match event:
            case Stored():
                return self._stored(shelf, event)
            case Removed():
                self._removed(shelf, event)
            case Cleared():  # has no tier: the safe reading is all of them
                self.forget(target)
        return []

    def _stored(self, shelf: _Shelf, event: Stored) -> list[Key]:
        if event.tier is Tier.GPU or shelf.block_tokens is None:
            shelf.block_tokens = event.block_tokens
        group = shelf.groups.get(event.group)
        if group is None:
            group = shelf.groups[event.group] = _Group()
        copies, keys = group.copies[event.tier], group.keys
        entered: list[Key] = []
        for hash_ in event.hashes:
            already = copies.get(hash_, 0)
            copies[hash_] = already + 1
            if not already and (key := keys.get(hash_)) is not None:  # known from another tier
                self._enter(shelf, event.tier, key, entered)
        self._name(shelf, group, event, entered)
        return entered

    def _name(self, shelf: _Shelf, group: _Group, event: Stored, entered: list[Key]) -> None:
        """Gives the event's blocks their keys, and those that waited for them; or lets it wait itself."""
        ready = [event]
        while ready:
            event = ready.pop()
            chain = self._chain(shelf, group, event)
            if chain is None:
                self._wait(shelf, event)
                continue
            for hash_, key in zip(event.hashes[-len(chain) :] if chain else (), chain, strict=True):
                if hash_ in group.keys or not group.cached(hash_):  # not cached: removed while it waited
                    continue
                group.keys[hash_] = key
                for tier in Tier:
                    if hash_ in group.copies[tier]:
                        self._enter(shelf, tier, key, entered)
                if shelf.waiting and (children := shelf.waiting.pop((event.group, hash_), None)):
                    shelf.orphans -= sum(len(child.hashes) for child in children)
                    ready.extend(children)

    def _chain(self, shelf: _Shelf, group: _Group, event: Stored) -> list[Key] | None:
        """Keys of the event's last blocks, from the first whose hash has none yet; None: the parent is unknown.

        Hashes known already keep their key: it costs nothing, and some tiers announce a salted chain without its salt.
        """
        known = 0
        parent: Key | None
        if event.hashes[0] in group.keys:
            while known < len(event.hashes) and event.hashes[known] in group.keys:
                known += 1
            parent = group.keys[event.hashes[known - 1]]
        elif event.parent is None:
            parent = self._keyring.root(shelf.model, event.adapter, event.salt)
        else:
            parent = group.keys.get(event.parent)
        if parent is None:
            return None
        extras = event.extras[known:] if event.extras is not None else None
        token_ids = event.token_ids[known * event.block_tokens :] if known else event.token_ids
        return self._keyring.chain(parent, token_ids, event.block_tokens, extras)

    def _wait(self, shelf: _Shelf, event: Stored) -> None:
        assert event.parent is not None
        shelf.waiting.setdefault((event.group, event.parent), []).append(event)
        shelf.orphans += len(event.hashes)
        while shelf.orphans > self._orphan_blocks:  # the oldest go: their parent is the least likely to come
            oldest = next(iter(shelf.waiting))
            shelf.orphans -= len(shelf.waiting[oldest].pop(0).hashes)
            if not shelf.waiting[oldest]:
                del shelf.waiting[oldest]

    def _removed(self, shelf: _Shelf, event: Removed) -> None:
        group = shelf.groups.get(event.group)
        if group is None:  # of a group that is not indexed
            return
        copies = group.copies[event.tier]
        for hash_ in event.hashes:
            left = copies.get(hash_, 0) - 1
            if left > 0:
                copies[hash_] = left
            elif left == 0:
                del copies[hash_]
                if (key := group.keys.get(hash_)) is not None:
                    self._exit(shelf, event.tier, key)
                    if not group.cached(hash_):
                        del group.keys[hash_]

    def _enter(self, shelf: _Shelf, tier: Tier, key: Key, entered: list[Key]) -> None:
        holders = self._holders[tier]
        bits = holders.get(key, 0)
        if bits & shelf.bit:
            shelf.twins[tier, key] = shelf.twins.get((tier, key), 0) + 1
            return
        holders[key] = bits | shelf.bit
        shelf.blocks[tier] += 1
        self._blocks[tier] += 1
        if tier is Tier.GPU:
            entered.append(key)

    def _exit(self, shelf: _Shelf, tier: Tier, key: Key) -> None:
        if twins := shelf.twins.get((tier, key), 0):
            if twins > 1:
                shelf.twins[tier, key] = twins - 1
            else:
                del shelf.twins[tier, key]
            return
        holders = self._holders[tier]
        _clear(holders, key, holders[key] ^ shelf.bit)
        shelf.blocks[tier] -= 1
        self._blocks[tier] -= 1

    # What requests ask

    def match(self, keys: Sequence[Key], targets: Collection[TargetId]) -> dict[TargetId, Held]:
        """How far each of `targets` holds the chain `keys` from its first block; who holds nothing is absent.

        A walk that ends where the last target drops out: 50 ns per block, and 200 ns per target and drop.
        """
        asked = 0
        for target in targets:
            if (shelf := self._shelves.get(target)) is not None:
                asked |= shelf.bit
        holding: Iterator[int] = map(self._holders[Tier.GPU].get, keys, repeat(0))
        gpu = self._runs(holding, asked, len(keys))
        reach = [gpu, gpu, gpu]
        for tier in (Tier.CPU, Tier.DISK):
            if self._holders[tier]:
                tables = self._holders[: tier + 1]
                holding = map(tables[0].get, keys, repeat(0))
                for slower in tables[1:]:
                    holding = map(or_, holding, map(slower.get, keys, repeat(0)))
                reach[tier] = self._runs(holding, asked, len(keys))
            else:
                reach[tier] = reach[tier - 1]
        gpu, cpu, disk = reach
        return {self._targets[bit]: Held(gpu.get(bit, 0), cpu.get(bit, 0), blocks) for bit, blocks in disk.items()}

    def _runs(self, holding: Iterator[int], alive: int, length: int) -> dict[int, int]:
        """Leading blocks per bit of `alive`, given who holds each block in turn; bits that hold none are absent."""
        runs: dict[int, int] = {}
        for position, bits in enumerate(holding):
            if alive & bits != alive:
                if position:
                    runs.update(zip(_split(alive & ~bits), repeat(position)))
                alive &= bits
                if not alive:
                    return runs
        if length:
            runs.update(zip(_split(alive), repeat(length)))
        return runs

    def block_tokens(self, target: TargetId) -> int | None:
        """Tokens per block as last told by `target`; None: it has told nothing, or is unknown."""
        shelf = self._shelves.get(target)
        return shelf.block_tokens if shelf is not None else None

    def held_blocks(self, target: TargetId) -> int:
        """How many blocks of known chains `target` holds, each once, whatever tiers it is in; 0 for a stranger. Groups
        keep different layers of the same blocks: the fullest one counts.
        """
        shelf = self._shelves.get(target)
        return 0 if shelf is None else max((len(group.keys) for group in shelf.groups.values()), default=0)

    def stats(self, target: TargetId) -> IndexStats:
        """Sizes of what is known of `target` (joined: KeyError)."""
        shelf = self._shelves[target]
        own = getsizeof(shelf.waiting) + getsizeof(shelf.twins)
        for group in shelf.groups.values():
            own += getsizeof(group.keys) + sum(map(getsizeof, group.copies))
            own += INT_BYTES * max(len(group.keys), *map(len, group.copies))
        gpu, cpu, disk = shelf.blocks
        for tier, holders in zip(Tier, self._holders, strict=True):
            common = getsizeof(holders) + 2 * INT_BYTES * len(holders)  # a key and its bits
            own += common * shelf.blocks[tier] // max(1, self._blocks[tier])
        return IndexStats((gpu, cpu, disk), shelf.orphans, own)


def _clear(holders: dict[Key, int], key: Key, bits: int) -> None:
    if bits:
        holders[key] = bits
    else:
        del holders[key]


def _split(bits: int) -> Iterator[int]:
    """The single bits of `bits`, lowest first."""
    while bits:
        lowest = bits & -bits
        yield lowest
        bits ^= lowest
