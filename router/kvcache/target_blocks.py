"""All that one target holds: what its events write.

    group -> tier -> engine hash -> our key      (None: an orphan, its chain is not known)
                  -> engine hash -> further copies, where there are any

Engines announce and remove *physical copies* and keep duplicates of one hash, so copies are counted and a block goes
with the last one. A block whose parent is unknown cannot be named: it is held without a key, and its tokens wait
(bounded) until the parent turns up. It is never hung on the root.

Two paths lead to the same state. The straight one takes an event as engines mostly send it: blocks that are new here,
after a block that is known, at C's speed. The careful one takes any. Hashes are kept with 60 bits, which CPython
stores in 32 bytes, not 48: among a million blocks of one target, two look alike with a chance of 1 in 2 million.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from sys import getsizeof
from typing import NamedTuple, TypeVar, cast

from router.kvcache.block_holders import BlockHolders
from router.kvcache.block_keys import SHORT, Keyring
from router.kvcache.contiguity import ContiguousRuns
from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Key, Tier

INT_BYTES = 32  # a CPython int of 31 to 60 bits

T = TypeVar("T")

Label = int  # what is kept of an engine's hash
Names = dict[Label, Key | None]


class _Group:
    """One KV cache group."""

    __slots__ = ("extra_copies", "keyed", "keys")

    def __init__(self) -> None:
        self.keys: tuple[Names, ...] = ({}, {}, {})  # by tier
        self.extra_copies: tuple[dict[Label, int], ...] = ({}, {}, {})  # by tier: copies beyond the first, never 0
        self.keyed = 0  # hashes with a key, each once, whatever tiers they are in

    def cached(self, hash_: Label) -> bool:
        gpu, cpu, disk = self.keys
        return hash_ in gpu or hash_ in cpu or hash_ in disk

    def key(self, hash_: Label) -> Key | None:
        gpu, cpu, disk = self.keys
        key = gpu.get(hash_)
        if key is None and (cpu or disk):
            key = cpu.get(hash_)
            return disk.get(hash_) if key is None else key
        return key

    def is_new(self, hashes: Sequence[Label]) -> bool:
        gpu, cpu, disk = self.keys
        return gpu.keys().isdisjoint(hashes) and (
            not (cpu or disk) or (cpu.keys().isdisjoint(hashes) and disk.keys().isdisjoint(hashes))
        )


class _Chain(NamedTuple):
    """The keys of an event's last blocks."""

    after: Key | None  # the block before them; None: they begin a chain
    keys: list[Key]


class TargetBlocks:
    """One target's. `bit` is its place in `holders`; `orphan_blocks` bounds what waits for its parent."""

    __slots__ = (
        "_holders",
        "_keyring",
        "_orphan_blocks",
        "_waiting",
        "bit",
        "block_tokens",
        "blocks",
        "duplicates",
        "groups",
        "model",
        "orphans",
        "runs",
    )  # fmt: skip

    def __init__(self, model: str, bit: int, holders: BlockHolders, keyring: Keyring, orphan_blocks: int) -> None:
        self.model = model
        self.bit = bit
        self.block_tokens: int | None = None
        self.blocks = [0, 0, 0]  # distinct keys by tier
        self.groups: dict[int, _Group] = {}
        self.runs: ContiguousRuns | None = (
            ContiguousRuns()
        )  # None: it may hold a block without the one before it, or more than one copy
        self.duplicates: dict[
            tuple[Tier, Key], int
        ] = {}  # further hashes, of other groups, that mean a key held already
        self.orphans = 0  # blocks that wait
        self._waiting: dict[tuple[int, Label], list[BlocksStored]] = {}  # by the parent (of a group) they wait for
        self._holders = holders
        self._keyring = keyring
        self._orphan_blocks = orphan_blocks

    @property
    def contiguous(self) -> bool:
        """It holds nothing but chains without holes, on the GPU, in one group: its runs can be bisected."""
        return self.runs is not None

    @property
    def keyed_blocks(self) -> int:
        """Blocks of known chains, whatever tiers they are in. Groups keep different layers: the fullest counts."""
        return max((group.keyed for group in self.groups.values()), default=0)

    def group(self, number: int) -> _Group:
        if (group := self.groups.get(number)) is None:
            group = self.groups[number] = _Group()
            if len(self.groups) > 1:
                self.runs = None
        return group

    # Blocks come

    def store(self, event: BlocksStored) -> list[Key]:
        """Returns the keys that entered the GPU tier by this."""
        tier = event.tier
        if tier is Tier.GPU or self.block_tokens is None:
            self.block_tokens = event.block_tokens
        if tier is not Tier.GPU:
            self.runs = None
        group = self.group(event.group)
        hashes = [hash_ & SHORT for hash_ in event.hashes]
        parent = None if event.parent is None else event.parent & SHORT
        after = None if parent is None else group.key(parent)
        if (
            (parent is None or after is not None)
            and len(set(hashes)) == len(hashes)
            and group.is_new(hashes)
            and not (self._waiting and any((event.group, hash_) in self._waiting for hash_ in hashes))
        ):
            return self._straight(group, event, hashes, after)
        short = cast("list[EngineHash]", hashes), cast("EngineHash | None", parent)
        return self._careful(group, event._replace(hashes=short[0], parent=short[1]))

    def _straight(self, group: _Group, event: BlocksStored, hashes: list[Label], after: Key | None) -> list[Key]:
        """Blocks that are new here in every way, after `after`, and nobody waits for them."""
        before = self._keyring.root(self.model, event.adapter, event.salt) if after is None else after
        keys = self._keyring.chain(before, event.token_ids, event.block_tokens, event.extras)
        tier = event.tier
        group.keys[tier].update(zip(hashes, keys, strict=True))
        group.keyed += len(keys)
        entered = self._holders.add(tier, keys, self.bit)
        self.blocks[tier] += len(entered)
        if len(entered) != len(keys):
            self._note_twins(tier, keys, entered)
        elif self.runs is not None and not self.runs.append(after, keys):
            self.runs = None
        return entered if tier is Tier.GPU else []

    def _note_twins(self, tier: Tier, keys: list[Key], entered: list[Key]) -> None:
        self.runs = None
        for key in set(keys).difference(entered):
            self.duplicates[tier, key] = self.duplicates.get((tier, key), 0) + 1

    def _careful(self, group: _Group, event: BlocksStored) -> list[Key]:
        held, more = group.keys[event.tier], group.extra_copies[event.tier]
        entered: list[Key] = []
        for hash_ in event.hashes:
            if hash_ in held:
                more[hash_] = more.get(hash_, 0) + 1
                continue
            key = held[hash_] = group.key(hash_)
            if key is not None:  # known from another tier
                self._enter(event.tier, key, None, entered)
        self._name(group, event, entered)
        return entered

    def _name(self, group: _Group, event: BlocksStored, entered: list[Key]) -> None:
        """Gives the event's blocks their keys, and those that waited for them; or lets it wait itself."""
        ready = [event]
        while ready:
            event = ready.pop()
            chain = self._chain(group, event)
            if chain is None:
                self._wait(event)
                continue
            after = chain.after
            for hash_, key in zip(event.hashes[-len(chain.keys) :] if chain.keys else (), chain.keys, strict=True):
                if group.key(hash_) is None and group.cached(hash_):  # else removed while it waited
                    group.keyed += 1
                    for tier, names in zip(Tier, group.keys, strict=True):
                        if hash_ in names:
                            names[hash_] = key
                            self._enter(tier, key, after, entered)
                    if self._waiting and (children := self._waiting.pop((event.group, hash_), None)):
                        self.orphans -= sum(len(child.hashes) for child in children)
                        ready.extend(children)
                after = key

    def _chain(self, group: _Group, event: BlocksStored) -> _Chain | None:
        """Keys of the event's last blocks, from the first whose hash has none yet; None: the parent is unknown.

        Hashes known already keep their key: it costs nothing, and some tiers announce a salted chain without its salt.
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
        self.orphans += len(event.hashes)
        while self.orphans > self._orphan_blocks:  # the oldest go: their parent is the least likely to come
            oldest = next(iter(self._waiting))
            self.orphans -= len(self._waiting[oldest].pop(0).hashes)
            if not self._waiting[oldest]:
                del self._waiting[oldest]

    def _enter(self, tier: Tier, key: Key, after: Key | None, entered: list[Key]) -> None:
        """`after` counts only while all is whole."""
        if not self._holders.add(tier, [key], self.bit):
            self._note_twins(tier, [key], [])
            return
        self.blocks[tier] += 1
        if tier is Tier.GPU:
            entered.append(key)
        if self.runs is not None:
            hangs = after is None or self._holders.holds(Tier.GPU, after, self.bit)
            if not (hangs and self.runs.append(after, [key])):
                self.runs = None

    # Blocks go

    def remove(self, event: BlocksRemoved) -> None:
        group = self.groups.get(event.group)
        if group is None:  # of a group that is not indexed
            return
        tier, whole = event.tier, self.runs is not None
        take, more, twins = group.keys[tier].pop, group.extra_copies[tier], self.duplicates
        keys: list[Key] = []
        for full in event.hashes:
            hash_ = full & SHORT
            if more and _one_less(more, hash_):
                continue
            if (key := take(hash_, None)) is None:
                continue
            if whole or not group.cached(hash_):
                group.keyed -= 1
            if not (twins and _one_less(twins, (tier, key))):
                keys.append(key)
        self._holders.remove(tier, keys, self.bit)
        self.blocks[tier] -= len(keys)
        if self.runs is not None and not self.runs.remove(keys):
            self.runs = None

    def tables(self) -> Iterator[tuple[Tier, Names]]:
        """All that it holds, by tier and group, for whoever takes its bit off the common tables."""
        return ((tier, names) for group in self.groups.values() for tier, names in zip(Tier, group.keys, strict=True))

    def memory_bytes(self) -> int:
        """An estimate of what its own tables take."""
        own = getsizeof(self._waiting) + getsizeof(self.duplicates)
        for group in self.groups.values():
            own += sum(map(getsizeof, group.keys)) + sum(map(getsizeof, group.extra_copies))
            own += INT_BYTES * max(map(len, group.keys))
        return own + (self.runs.memory_bytes() if self.runs is not None else 0)


def _one_less(counts: dict[T, int], what: T) -> bool:
    """Takes one off what is counted; False: there was none."""
    count = counts.get(what, 0)
    if count > 1:
        counts[what] = count - 1
    elif count:
        del counts[what]
    return count > 0
