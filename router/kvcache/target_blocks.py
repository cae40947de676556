"""The blocks of one target, as its events announce them.

    group -> tier -> engine hash -> key      (None: an orphan, its chain is not known)
                  -> engine hash -> additional copies, where there are any

Engines announce and remove *physical copies* and keep duplicates of one hash, so copies are counted and a block goes
with the last one. A block whose parent is unknown has no key: it is held without one, and its tokens wait (bounded)
until the parent arrives. It is never attached to the root.

Two paths lead to the same state. The fast one takes an event as engines mostly send it: blocks that are new here, after
a known block, all at once (`bulk.py`). The slow one takes any event. Hashes are kept with 60 bits: among a million
blocks of one target, two look alike with a chance of 1 in 2 million.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import Any, NamedTuple, TypeVar, cast

from router.kvcache.block_holders import BlockHolders
from router.kvcache.block_keys import Keyring
from router.kvcache.bulk import SHORT, KeyTable
from router.kvcache.contiguity import ContiguousRuns
from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Key, Tier

ORPHAN_BYTES = 4 * 1024 * 1024  # that blocks without a known parent may take, beside the limit on their number
EVENT_BYTES = 1000  # counted for an event: 4,000 that wait for one parent are applied at once, in 30 ms
DUPLICATE_BYTES = 80  # the key of an entry of `duplicates`

T = TypeVar("T")

Label = int  # 60 bits of an engine's hash


class _Group:
    """One KV cache group."""

    __slots__ = ("extra_copies", "keyed", "keys")

    def __init__(self) -> None:
        self.keys = (KeyTable(), KeyTable(), KeyTable())  # by tier
        self.extra_copies: tuple[dict[Label, int], ...] = ({}, {}, {})  # by tier: copies beyond the first, never 0
        self.keyed = 0  # hashes with a key, each once, whatever their tiers

    def cached(self, hash_: Label) -> bool:
        gpu, cpu, disk = self.keys
        return hash_ in gpu or hash_ in cpu or hash_ in disk

    def key(self, hash_: Label) -> Key | None:
        for table in self.keys:
            if (key := table.get(hash_)) is not None:
                return Key(key)
        return None

    def other_tiers(self, tier: Tier) -> list[KeyTable]:
        """Return the tables of the tiers but `tier` that hold anything."""
        gpu, cpu, disk = self.keys
        if not cpu and not disk and tier is Tier.GPU:
            return []
        return [table for other, table in enumerate((gpu, cpu, disk)) if table and other != tier]

    def is_new_elsewhere(self, hashes: list[Label], tier: Tier) -> bool:
        """Return whether no tier but `tier` holds any of `hashes`."""
        return all(table.is_new(hashes) for table in self.other_tiers(tier))


class _Chain(NamedTuple):
    """The keys of an event's last blocks."""

    after: Key | None  # the block before them; None: a chain begins
    keys: list[Key]


class TargetBlocks:
    """The blocks of one target. `bit` is its bit in `holders`; at most `orphan_blocks` wait for their parent."""

    __slots__ = (
        *("_holders", "_keyring", "_orphan_blocks", "_waiting", "_waiting_bytes"),
        *("bit", "block_tokens", "blocks", "duplicates", "groups", "model", "orphans", "runs"),
    )

    def __init__(self, model: str, bit: int, holders: BlockHolders, keyring: Keyring, orphan_blocks: int) -> None:
        self.model = model
        self.bit = bit
        self.block_tokens: int | None = None
        self.blocks = [0, 0, 0]  # distinct keys by tier
        self.groups: dict[int, _Group] = {}
        self.runs: ContiguousRuns | None = ContiguousRuns()  # None: maybe holes, or more than one copy of a block
        self.duplicates: dict[tuple[Tier, Key], int] = {}  # additional hashes, of other groups, of a held key
        self.orphans = 0  # blocks that wait for their parent
        self._waiting: dict[tuple[int, Label], list[BlocksStored]] = {}  # by group and parent
        self._waiting_bytes = 0
        self._holders = holders
        self._keyring = keyring
        self._orphan_blocks = orphan_blocks

    @property
    def contiguous(self) -> bool:
        """Return whether it holds only chains without holes, on the GPU, in one group, and so can be bisected."""
        return self.runs is not None

    @property
    def keyed_blocks(self) -> int:
        """Blocks with known chains, in any tier. Groups keep different layers: the fullest counts."""
        return max((group.keyed for group in self.groups.values()), default=0)

    def group(self, number: int) -> _Group:
        """Return the group with this number; create it if necessary."""
        if (group := self.groups.get(number)) is None:
            group = self.groups[number] = _Group()
            if len(self.groups) > 1:
                self.runs = None
        return group

    # stored

    def store(self, event: BlocksStored) -> list[Key]:
        """Add the event's blocks. Return the keys that entered the GPU tier."""
        tier = event.tier
        if tier is Tier.GPU or self.block_tokens is None:
            self.block_tokens = event.block_tokens
        if tier is not Tier.GPU:
            self.runs = None
        group = self.group(event.group)
        hashes = cast("list[Label]", event.hashes)
        after = None if event.parent is None else group.key(event.parent)
        known = event.parent is None or after is not None
        if known and not self._is_awaited(event) and group.is_new_elsewhere(hashes, tier):
            before = self._keyring.root(self.model, event.adapter, event.salt) if after is None else after
            keys = self._keyring.chain(before, event.token_ids, event.block_tokens, event.extras)
            if group.keys[tier].add_new(hashes, cast("list[int]", keys)):
                return self._add_keyed(group, tier, keys, after)
        shortened = [EngineHash(hash_ & SHORT) for hash_ in event.hashes]
        parent = None if event.parent is None else EngineHash(event.parent & SHORT)
        return self._store_any(group, event._replace(hashes=shortened, parent=parent))

    def _is_awaited(self, event: BlocksStored) -> bool:
        """Return whether an orphan waits for one of the event's blocks."""
        return bool(self._waiting) and any((event.group, hash_ & SHORT) in self._waiting for hash_ in event.hashes)

    def _add_keyed(self, group: _Group, tier: Tier, keys: list[Key], after: Key | None) -> list[Key]:
        """Count blocks that were added after `after` with their keys. Return those that entered the GPU tier."""
        group.keyed += len(keys)
        entered = self._holders.add(tier, keys, self.bit)
        self.blocks[tier] += len(entered)
        if len(entered) != len(keys):
            self._count_duplicates(tier, keys, entered)
        elif self.runs is not None and not self.runs.append(after, keys):
            self.runs = None
        return entered if tier is Tier.GPU else []

    def _count_duplicates(self, tier: Tier, keys: list[Key], entered: list[Key]) -> None:
        self.runs = None
        for key in set(keys).difference(entered):
            self.duplicates[tier, key] = self.duplicates.get((tier, key), 0) + 1

    def _store_any(self, group: _Group, event: BlocksStored) -> list[Key]:
        held, more = group.keys[event.tier], group.extra_copies[event.tier]
        entered: list[Key] = []
        for hash_ in event.hashes:
            if hash_ in held:
                more[hash_] = more.get(hash_, 0) + 1
                continue
            key = group.key(hash_)
            held.set(hash_, key)
            if key is not None:  # known from another tier
                self._enter(event.tier, key, None, entered)
        self._assign_keys(group, event, entered)
        return entered

    def _assign_keys(self, group: _Group, event: BlocksStored, entered: list[Key]) -> None:
        """Assign keys to the event's blocks and to orphans that waited for them, or make the event wait."""
        ready = [event]
        while ready:
            event = ready.pop()
            chain = self._chain(group, event)
            if chain is None:
                self._wait(event)
                continue
            after = chain.after
            for hash_, key in zip(event.hashes[-len(chain.keys) :] if chain.keys else (), chain.keys, strict=True):
                if group.key(hash_) is None and group.cached(hash_):  # otherwise removed while it waited
                    group.keyed += 1
                    for tier, names in zip(Tier, group.keys, strict=True):
                        if hash_ in names:
                            names.set(hash_, key)
                            self._enter(tier, key, after, entered)
                # Also of a block that was removed meanwhile: a child may be known now from this event.
                if self._waiting and (children := self._waiting.pop((event.group, hash_), None)):
                    self._count_waiting(children, -1)
                    ready.extend(children)
                after = key

    def _chain(self, group: _Group, event: BlocksStored) -> _Chain | None:
        """Return the keys of the event's last blocks, from the first whose hash has none yet; `None`: the parent is
        unknown.

        Hashes with a key keep it: that costs nothing, and some tiers announce a salted chain without its salt.
        """
        known, hashes = 0, event.hashes
        while known < len(hashes) and group.key(hashes[known]) is not None:
            known += 1
        if known:
            after = group.key(hashes[known - 1])
        elif event.parent is None:
            after = None
        elif (after := group.key(event.parent)) is None:
            return None
        before = self._keyring.root(self.model, event.adapter, event.salt) if after is None else after
        extras = event.extras[known:] if event.extras is not None else None
        token_ids = event.token_ids[known * event.block_tokens :] if known else event.token_ids
        return _Chain(after, self._keyring.chain(before, token_ids, event.block_tokens, extras))

    def _wait(self, event: BlocksStored) -> None:
        assert event.parent is not None
        self._waiting.setdefault((event.group, event.parent), []).append(event)
        self._count_waiting([event], 1)
        while self.orphans > self._orphan_blocks or self._waiting_bytes > ORPHAN_BYTES:
            oldest = next(iter(self._waiting))  # its parent is the least likely to arrive
            self._count_waiting([self._waiting[oldest].pop(0)], -1)
            if not self._waiting[oldest]:
                del self._waiting[oldest]

    def _count_waiting(self, events: Sequence[BlocksStored], sign: int) -> None:
        for event in events:
            self.orphans += sign * len(event.hashes)
            extras = sum(map(len, event.extras)) if event.extras is not None else 0
            self._waiting_bytes += sign * (EVENT_BYTES + 4 * len(event.token_ids) + extras)

    def _enter(self, tier: Tier, key: Key, after: Key | None, entered: list[Key]) -> None:
        """Add one key. `after` is its predecessor, used only while the blocks are contiguous."""
        if not self._holders.add(tier, [key], self.bit):
            self._count_duplicates(tier, [key], [])
            return
        self.blocks[tier] += 1
        if tier is Tier.GPU:
            entered.append(key)
        if self.runs is not None:
            attached = after is None or self._holders.holds(Tier.GPU, after, self.bit)
            if not (attached and self.runs.append(after, [key])):
                self.runs = None

    # removed

    def remove(self, event: BlocksRemoved) -> None:
        """Remove one copy of each of the event's blocks."""
        group = self.groups.get(event.group)
        if group is None:  # the group is not indexed
            return
        tier, table, more = event.tier, group.keys[event.tier], group.extra_copies[event.tier]
        hashes = cast("list[Label]", event.hashes)
        if more:
            hashes = [hash_ for hash_ in hashes if not _decrement(more, hash_ & SHORT)]
        if group.other_tiers(tier):
            keys = self._take_of_tiers(group, table, hashes)
        else:
            keys = cast("list[Key]", table.take(hashes))
            group.keyed -= len(keys)
        if self.duplicates:
            keys = [key for key in keys if not _decrement(self.duplicates, (tier, key))]
        self._holders.remove(tier, keys, self.bit)
        self.blocks[tier] -= len(keys)
        if self.runs is not None and not self.runs.remove(keys):
            self.runs = None

    def _take_of_tiers(self, group: _Group, table: KeyTable, hashes: list[Label]) -> list[Key]:
        """Remove blocks from the table of one tier, of which others may keep copies. Return their keys."""
        keys: list[Key] = []
        for hash_ in hashes:
            taken = cast("list[Key]", table.take([hash_]))
            if taken and not group.cached(hash_):
                group.keyed -= 1
            keys += taken
        return keys

    def tables(self) -> Iterator[tuple[Tier, KeyTable]]:
        """Yield the tables of all tiers and groups, so that the caller can clear the bit from the common tables."""
        return ((tier, names) for group in self.groups.values() for tier, names in zip(Tier, group.keys, strict=True))

    def other_tables(self) -> Iterator[dict[Any, Any]]:
        """Yield the tables that have no entries in the common ones."""
        yield self._waiting
        yield self.duplicates
        for group in self.groups.values():
            yield from group.extra_copies
        if self.runs is not None:
            yield from self.runs.tables()

    def memory_bytes(self) -> int:
        """Estimate the memory of its own tables, in O(groups)."""
        own = getsizeof(self._waiting) + self._waiting_bytes
        own += getsizeof(self.duplicates) + DUPLICATE_BYTES * len(self.duplicates)
        for group in self.groups.values():
            own += sum(map(getsizeof, group.keys)) + sum(map(getsizeof, group.extra_copies))
        return own + (self.runs.memory_bytes(self.blocks[Tier.GPU]) if self.runs is not None else 0)


def _decrement(counts: dict[T, int], what: T) -> bool:
    """Take one off the count of `what`. Return False if there was none."""
    count = counts.get(what, 0)
    if count > 1:
        counts[what] = count - 1
    elif count:
        del counts[what]
    return count > 0
