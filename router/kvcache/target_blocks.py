"""The blocks of one target, as its events announce them.

    group -> tier -> engine hash -> key      (None: an orphan, its chain is not known)
                  -> engine hash -> additional copies, where there are any

Engines announce and remove *physical copies* and keep duplicates of one hash, so copies are counted and a block is
removed with its last copy. A block whose parent is unknown has no key: it is held without one, and its tokens wait
(bounded) until the parent arrives. It is never attached to the root.

Two paths lead to the same state. The fast one applies an event as engines mostly send it: blocks not held yet,
after a known block, all at once (`bulk.py`). The slow one applies any event. Hashes are kept with 60 bits: the
chance that two of a million blocks of one target look alike is 1 in 2 million.

A *partial entry* (`partial_entries.py`) names the end of a prompt inside a block: one hash, with fewer tokens than a
block of its group has. It takes no block of its own; so an event of a single entry never lowers the size of a group's
blocks. The first event of a group may be a partial entry, which counts as a block until a larger one shows the size.

A *full report* (`kv_cache_report_mode`) announces held blocks again and looks like copies of them. A GPU has room
for every copy, so if blocks and copies exceed its size, some are not copies; from then on no copies are counted,
and the reports restore blocks that are removed too early. More blocks than the GPU has room for belong to another
process: see `fits`.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from sys import getsizeof
from typing import Any, NamedTuple, cast

from router.kvcache.block_group import BlockGroup, Label, decrement
from router.kvcache.block_holders import BlockHolders
from router.kvcache.block_keys import Keyring
from router.kvcache.bulk import SHORT, KeyTable
from router.kvcache.contiguity import ContiguousRuns
from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Key, TailsStored, Tier
from router.kvcache.orphans import Orphans
from router.kvcache.partial_entries import PartialEntries
from router.kvcache.recent_removals import RecentRemovals
from router.kvcache.tail_groups import TailGroup, Tails, TailShape, TailTable

TAIL_BYTES = 200  # a block of a tail: in a dict and in a set
EARLY_ENTRIES = 1024  # entries inside blocks that may come before any whole block
DUPLICATE_BYTES = 80  # the key of an entry of `duplicates`


class _Chain(NamedTuple):
    """The keys of an event's last blocks."""

    after: Key | None  # the block before them; None: a chain begins
    keys: list[Key]


class TargetBlocks:
    """The blocks of one target. `bit` is its bit in `holders` and `tails`; at most `orphan_blocks` wait for their
    parent.
    """

    __slots__ = (
        *("_holders", "_keyring", "_orphans"),
        *("bit", "block_tokens", "blocks", "counts_copies", "duplicates", "entries", "groups", "model", "partial"),
        *("incomplete", "removals", "repeated", "runs", "tails", "uncounted"),
    )

    def __init__(
        self,
        model: str,
        bit: int,
        holders: BlockHolders,
        tails: dict[TailShape, TailTable],
        keyring: Keyring,
        orphan_blocks: int,
    ) -> None:
        self.model = model
        self.bit = bit
        self.block_tokens: int | None = None
        self.blocks = [0, 0, 0]  # distinct keys by tier
        self.groups: dict[int, BlockGroup] = {}
        self.tails = Tails(tails, bit)
        self.entries: PartialEntries | None = None  # None: no entry inside a block yet
        self.incomplete: set[Key] = set()  # on the GPU, held by some and not by all groups of full attention
        self.runs: ContiguousRuns | None = ContiguousRuns()  # None: maybe holes, or more than one copy of a block
        self.duplicates: dict[tuple[Tier, Key], int] = {}  # additional hashes, of other groups, of a held key
        self.partial = 0  # entries inside blocks
        self.uncounted = 0  # blocks that were announced for the GPU but took no room on it
        self.repeated = 0  # blocks that were announced on the GPU although they were held there
        self.counts_copies = True  # False: the engine announces blocks that it announced before
        self.removals: RecentRemovals | None = None  # None: not recorded
        self._orphans = Orphans(orphan_blocks)
        self._holders = holders
        self._keyring = keyring

    @property
    def contiguous(self) -> bool:
        """Whether the target holds only chains without holes, on the GPU, in one group, and so can be bisected."""
        return self.runs is not None

    @property
    def orphans(self) -> int:
        """Number of blocks that wait for their parent."""
        return self._orphans.blocks

    @property
    def keyed_blocks(self) -> int:
        """Number of blocks with known chains, in any tier. Groups keep different layers, so the fullest counts."""
        return max((group.keyed for group in self.groups.values()), default=0)

    def group(self, number: int) -> BlockGroup:
        """Return the group with this number; create it if necessary."""
        if (group := self.groups.get(number)) is None:
            group = self.groups[number] = BlockGroup()
            if len(self.groups) > 1:
                self.runs = None
            if self.entries is not None:
                self.entries.group(number)  # all groups must have an entry
        return group

    # tails

    def store_tails(self, event: TailsStored) -> None:
        """Add blocks of a group that keeps only tails."""
        tail = self.tails.group(event.group, TailShape(event.block_tokens, event.need, event.leading))
        if event.block_tokens < tail.kind.shape.block_tokens and len(event.hashes) == 1 and not event.leading:
            self.find_entries(event.block_tokens)
        labels = [hash_ & SHORT for hash_ in event.hashes]
        # A report of a hit names every block of it in every group, also those that the group does not hold.
        reported = event.from_start and len(labels) > event.need and all(map(self._key_of, labels))
        if not reported:
            tail.store(labels, self._key_of)

    @property
    def layout(self) -> tuple[int | None, int, int, bool]:
        """A value that differs after every change that may change `equal_shapes`, and is cheaper."""
        return self.block_tokens, len(self.groups), len(self.tails.kinds), self.entries is None

    @property
    def equal_shapes(self) -> tuple[TailShape, ...] | None:
        """The shapes of the tails, with blocks of the same size as those of the only group of full attention; None if
        there are no tails, or others.
        """
        size = self.block_tokens
        if (
            not self.tails.kinds
            or len(self.groups) > 1
            or self.entries is not None
            or any(shape.block_tokens != size for shape in self.tails.kinds)
        ):
            return None
        return tuple(sorted(self.tails.kinds))

    def count_reusable(self, keys: Sequence[Key], blocks: int, *, drafts: bool) -> int:
        """Return how many of the first `blocks` blocks of a prompt, all held on the GPU, the engine re-uses. `drafts`:
        the last block is computed again.
        """
        if self.incomplete:
            blocks = next((n for n in range(blocks) if keys[n] in self.incomplete), blocks)
        if drafts and blocks:
            blocks -= 1
        if self.block_tokens is None:
            return blocks
        return self.tails.count_reusable(keys, blocks, self.block_tokens, drafts=drafts)

    def find_end(self, blocks: int) -> int:
        """Return the last place in `blocks` leading blocks at which a prompt leaves tails; 0: inside a block."""
        if self.unit is not None:
            return 0
        return blocks if self.block_tokens is None else blocks - blocks % self.tails.find_alignment(self.block_tokens)

    # entries inside blocks

    @property
    def unit(self) -> int | None:
        """The tokens of a unit smaller than a block, in which the engine re-uses prompts; None: it re-uses blocks."""
        if self.entries is None or self.block_tokens is None:
            return None
        unit, size = self.entries.unit, self.block_tokens
        return unit if unit < size and not size % unit else None

    def find_entries(self, unit: int) -> PartialEntries:
        """Return the entries inside blocks, which end with units of `unit` tokens."""
        if self.entries is None or self.entries.unit != unit:
            self.entries = PartialEntries(unit)
            for number in self.groups:  # all must have an entry
                self.entries.group(number)
        return self.entries

    def _store_entries(self, group: int, unit: int, labels: Sequence[Label]) -> None:
        self.partial += len(labels)
        self.uncounted += len(labels)
        self.find_entries(unit).group(group).store(labels, _unknown)

    def unnamed_entries(self) -> Iterator[TailGroup]:
        """Yield the groups with entries, and with states inside blocks, whose places in chains are unknown."""
        if self.entries is not None:
            for group in (*self.tails.groups.values(), *(entries for _, entries in self.entries)):
                if group.unnamed:
                    yield group

    def name_entries(self, units: Mapping[Label, Key]) -> bool:
        """Set the keys of entries and states, given the engine's hashes of a prompt's units. Return whether there were
        any.
        """
        found = [(group, label) for group in self.unnamed_entries() for label in group.unnamed & units.keys()]
        for group, label in found:
            group.name(label, units[label])
        return bool(found)

    def count_reused_units(self, units: Sequence[Key], blocks: int, *, drafts: bool) -> int:
        """Return how many of the leading units of a prompt, of which `blocks` whole blocks are held on the GPU, the
        engine re-uses. `units`: the keys of all that can be re-used. `drafts`: the last one is computed again.
        """
        assert self.entries is not None
        assert self.block_tokens is not None
        size = self.block_tokens // self.entries.unit
        if self.incomplete:
            blocks = next((n for n in range(blocks) if units[(n + 1) * size - 1] in self.incomplete), blocks)
        end = self.entries.find_last(units, blocks * size, (blocks + 1) * size)
        if drafts and end:
            end -= 1
        return self.tails.count_reusable(units, end, self.entries.unit, drafts=drafts)

    def _key_of(self, label: Label) -> Key | None:
        return next((key for group in self.groups.values() if (key := group.key(label)) is not None), None)

    def _name_tails(self, labels: Iterable[Label]) -> None:
        """Set the keys of tails that were announced before full attention's blocks with the same hashes."""
        for tail in self.tails.groups.values():
            if tail.unnamed:
                for label in tail.unnamed.intersection([label & SHORT for label in labels]):
                    if (key := self._key_of(label)) is not None:
                        tail.name(label, key)

    # stored

    def store(self, event: BlocksStored) -> list[Key]:
        """Add the event's blocks. Return the keys that entered the GPU tier."""
        entered = self._store(event)
        if self.tails.groups:
            self._name_tails(cast("list[Label]", event.hashes))
        return entered

    def _store(self, event: BlocksStored) -> list[Key]:
        tier = event.tier
        group = self.group(event.group)
        if group.block_tokens != event.block_tokens and tier is Tier.GPU:
            if group.block_tokens is not None and event.block_tokens > group.block_tokens:
                self._turn_into_entries(group, event)
            if not _resize(group, event):
                self._store_entries(event.group, event.block_tokens, [hash_ & SHORT for hash_ in event.hashes])
                return []
            if len(self.groups) > 1:  # no block is held by this group yet
                self.incomplete.update(self.gpu_keys())
        if self.block_tokens != event.block_tokens and (tier is Tier.GPU or self.block_tokens is None):
            self._set_block_tokens(event)
        if tier is not Tier.GPU:
            self.runs = None
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

    def _turn_into_entries(self, group: BlockGroup, event: BlocksStored) -> None:
        """Turn the blocks of `group` into entries inside blocks, because an event shows that its blocks are larger."""
        unit, copies = group.block_tokens, group.extra_copies[Tier.GPU]
        if unit is None or event.block_tokens % unit or len(group.keys[Tier.GPU]) > EARLY_ENTRIES:
            return  # blocks of another process
        keyed, _, unnamed = group.keys[Tier.GPU].save()
        labels = array("Q", keyed + unnamed).tolist()
        held = [label for label in labels for _ in range(1 + copies.get(label, 0))]
        self.remove(BlocksRemoved(cast("list[EngineHash]", held), Tier.GPU, event.group))
        self._store_entries(event.group, unit, held)

    def _set_block_tokens(self, event: BlocksStored) -> None:
        """Note the size of the target's blocks, unless the event may be a partial entry of another size."""
        if self.block_tokens is None or event.block_tokens > self.block_tokens or len(event.hashes) > 1:
            self.block_tokens = event.block_tokens

    def fits(self, gpu_blocks: int) -> bool:
        """Return whether a GPU of `gpu_blocks` blocks has room for every group. Forget the copies if only they do
        not fit.

        All groups share the blocks, and each group by itself must fit.
        """
        for group in self.groups.values():
            held, copied = len(group.keys[Tier.GPU]), len(group.extra_copies[Tier.GPU])
            if held > gpu_blocks:
                return False
            if held + copied > gpu_blocks:
                self.counts_copies = False
                group.extra_copies[Tier.GPU].clear()
        return True

    def _is_awaited(self, event: BlocksStored) -> bool:
        """Return whether an orphan waits for one of the event's blocks."""
        return bool(self._orphans) and any(
            self._orphans.is_awaited(event.group, hash_ & SHORT) for hash_ in event.hashes
        )

    def _add_keyed(self, group: BlockGroup, tier: Tier, keys: list[Key], after: Key | None) -> list[Key]:
        """Count blocks that were added after `after` with their keys. Return those that entered the GPU tier."""
        group.keyed += len(keys)
        entered = self._holders.add(tier, keys, self.bit)
        self.blocks[tier] += len(entered)
        if len(entered) != len(keys):
            self._count_duplicates(tier, keys, entered)
        elif self.runs is not None and not self.runs.append(after, keys):
            self.runs = None
        if tier is not Tier.GPU:
            return []
        if len(self.groups) > 1:
            self.note_groups(keys)
        return entered

    def note_groups(self, keys: Iterable[Key]) -> None:
        """Note which of these keys on the GPU not all groups hold."""
        others = sum([group.block_tokens is not None for group in self.groups.values()]) - 1
        for key in keys:
            if self.duplicates.get((Tier.GPU, key), 0) < others:
                self.incomplete.add(key)
            else:
                self.incomplete.discard(key)

    def _count_duplicates(self, tier: Tier, keys: list[Key], entered: list[Key]) -> None:
        self.runs = None
        for key in set(keys).difference(entered):
            self.duplicates[tier, key] = self.duplicates.get((tier, key), 0) + 1

    def _store_any(self, group: BlockGroup, event: BlocksStored) -> list[Key]:
        held, more = group.keys[event.tier], group.extra_copies[event.tier]
        entered: list[Key] = []
        for hash_ in event.hashes:
            if hash_ in held:
                if event.tier is Tier.GPU and hash_ in group.recalled:
                    group.recalled.discard(hash_)  # the copy that was recalled, announced now
                    continue
                self.repeated += event.tier is Tier.GPU
                if self.counts_copies or event.tier is not Tier.GPU:
                    more[hash_] = more.get(hash_, 0) + 1
                else:
                    self.uncounted += 1
                continue
            key = group.key(hash_)
            if key is None and not group.cached(hash_):
                group.keyless += 1
            held.set(hash_, key)
            if key is not None:  # known from another tier
                self._enter(event.tier, key, None, entered)
        self._assign_keys(group, event, entered)
        return entered

    def _assign_keys(self, group: BlockGroup, event: BlocksStored, entered: list[Key]) -> None:
        """Assign keys to the event's blocks and to orphans that waited for them, or make the event wait."""
        ready = [event]
        while ready:
            event = ready.pop()
            chain = self._chain(group, event)
            if chain is None:
                self._orphans.add(event)
                if self._orphans.are_crowded:
                    self._orphans.drop_gone(self._is_cached)
                continue
            after = chain.after
            for hash_, key in zip(event.hashes[-len(chain.keys) :] if chain.keys else (), chain.keys, strict=True):
                if group.key(hash_) is None and group.cached(hash_):  # otherwise removed while it waited
                    self._assign_key(group, hash_, key, after, entered)
                # Also for a block that was removed meanwhile: this event may now show the chain of a child.
                ready += self._orphans.take(event.group, hash_)
                after = key

    def _assign_key(self, group: BlockGroup, hash_: Label, key: Key, after: Key | None, entered: list[Key]) -> None:
        """Assign the key of an orphan, in all its tiers."""
        for tail in self.tails.groups.values():
            tail.name(hash_, key)
        group.keyed += 1
        group.keyless -= 1
        for tier, names in zip(Tier, group.keys, strict=True):
            if hash_ in names:
                names.set(hash_, key)
                self._enter(tier, key, after, entered)

    def _chain(self, group: BlockGroup, event: BlocksStored) -> _Chain | None:
        """Return the keys of the event's last blocks, from the first whose hash has no key yet; None if the parent
        is unknown.

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

    def _enter(self, tier: Tier, key: Key, after: Key | None, entered: list[Key]) -> None:
        """Add one key. `after` is its predecessor, used only while the blocks are contiguous."""
        new = bool(self._holders.add(tier, [key], self.bit))
        if not new:
            self._count_duplicates(tier, [key], [])
        if tier is Tier.GPU and len(self.groups) > 1:
            self.note_groups([key])
        if not new:
            return
        self.blocks[tier] += 1
        if tier is Tier.GPU:
            entered.append(key)
        if self.runs is not None:
            attached = after is None or self._holders.holds(Tier.GPU, after, self.bit)
            if not (attached and self.runs.append(after, [key])):
                self.runs = None

    # recalled

    @property
    def keyless_blocks(self) -> int:
        """Cached blocks whose chains are not known, of the group that has most."""
        return max((group.keyless for group in self.groups.values()), default=0)

    def find_parents(self, hashes: Set[Label]) -> set[Label]:
        """Return those of `hashes` for which cached blocks wait as their parent."""
        return {hash_ for hash_ in self._orphans.parents(hashes) if self._has_cached_child(hash_)}

    def _has_cached_child(self, parent: Label) -> bool:
        return any(
            group.cached(event.hashes[0])
            for number, group in self.groups.items()
            for event in self._orphans.find(number, parent)
        )

    def _is_cached(self, group: int, hash_: Label) -> bool:
        return self.groups[group].cached(hash_)

    def knows(self, hash_: Label) -> bool:
        """Return whether a block is cached, or is the parent for which another block waits."""
        return any(
            group.cached(hash_) or self._orphans.is_awaited(number, hash_) for number, group in self.groups.items()
        )

    def recall(self, hashes: Sequence[Label], keys: Sequence[Key], removed: Collection[Label]) -> list[Key]:
        """Add the first blocks of a chain, cached on the GPU although no event announced them, up to the first that
        is in `removed`. Return the keys that entered the GPU tier.
        """
        entered: list[Key] = []
        if not self.groups:
            self.group(0)
        for number, group in self.groups.items():
            after: Key | None = None
            for hash_, key in zip(hashes, keys, strict=True):
                if group.key(hash_) is None:
                    if not group.cached(hash_):
                        if hash_ in removed:
                            break
                        group.keys[Tier.GPU].set(hash_, None)
                        group.keyless += 1
                        group.recalled.add(hash_)
                    self._assign_key(group, hash_, key, after, entered)
                for event in self._orphans.take(number, hash_):
                    self._assign_keys(group, event, entered)
                after = key
        return entered

    def recall_tails(self, hashes: Sequence[Label]) -> None:
        """Add the tails that the engine must hold, because it re-used a prompt up to the last of these blocks."""
        for tail in self.tails.groups.values():
            size, need, _ = tail.kind.shape
            if size == self.block_tokens:
                tail.recall(hashes[-need:], self._key_of)

    # removed

    def remove(self, event: BlocksRemoved) -> None:
        """Remove one copy of each of the event's blocks."""
        if (tail := self.tails.groups.get(event.group)) is not None:
            if event.tier is Tier.GPU:
                tail.remove([hash_ & SHORT for hash_ in event.hashes])
            return
        group = self.groups.get(event.group)
        if group is None:  # the group is not indexed
            return
        tier, table, more = event.tier, group.keys[event.tier], group.extra_copies[event.tier]
        hashes = cast("list[Label]", event.hashes)
        if self.entries is not None and tier is Tier.GPU:
            self.entries.group(event.group).remove([hash_ & SHORT for hash_ in hashes])
        if tier is Tier.GPU:
            if self.removals is not None:
                self.removals.add(hashes)
            if group.recalled:
                group.recalled.difference_update([hash_ & SHORT for hash_ in hashes])
        if more:
            hashes = [hash_ for hash_ in hashes if not decrement(more, hash_ & SHORT)]
        late = self.removals is not None and tier is Tier.GPU and self.runs is not None
        if late:
            hashes = self._take_ends(group, hashes)
        if group.other_tiers(tier):
            keys = self._take_of_tiers(group, table, hashes)
        else:
            before = len(table)
            keys = cast("list[Key]", table.take(hashes))
            group.keyed -= len(keys)
            group.keyless -= before - len(table) - len(keys)
        if tier is Tier.GPU and len(self.groups) > 1:
            self.incomplete.update(keys)
        if self.duplicates:
            keys = [key for key in keys if not decrement(self.duplicates, (tier, key))]
        if self.incomplete and tier is Tier.GPU:
            self.incomplete.difference_update(keys)
        self._holders.remove(tier, keys, self.bit)
        self.blocks[tier] -= len(keys)
        if self.runs is not None and not late and not self.runs.remove(keys):
            self.runs = None

    def _take_ends(self, group: BlockGroup, hashes: list[Label]) -> list[Label]:
        """Take the removed blocks out of the runs. Return those of which no copy is left.

        An engine whose stream was joined late may hold copies that were missed: with a hybrid model it computes the end
        of an answer again in the next turn. It evicts a chain from its end: a block with others after it is held.
        """
        gone = list[Label]()
        for hash_ in hashes:
            key = group.key(hash_ & SHORT)
            if key is not None and self.runs is not None:
                if self.runs.is_followed(key):
                    continue
                if not self.runs.remove([key]):
                    self.runs = None
            gone.append(hash_)
        return gone

    def _take_of_tiers(self, group: BlockGroup, table: KeyTable, hashes: list[Label]) -> list[Key]:
        """Remove blocks from the table of one tier; other tiers may keep copies. Return the removed keys."""
        keys: list[Key] = []
        for hash_ in hashes:
            before = len(table)
            taken = cast("list[Key]", table.take([hash_]))
            if len(table) < before and not group.cached(hash_):
                if taken:
                    group.keyed -= 1
                else:
                    group.keyless -= 1
            keys += taken
        return keys

    def gpu_keys(self) -> Sequence[Key]:
        """Return the keys of the blocks on the GPU, of the group that has the most."""
        tables = (group.keys[Tier.GPU] for group in self.groups.values())
        fullest = max(tables, key=len, default=None)
        return [] if fullest is None else cast("Sequence[Key]", array("Q", fullest.save()[1]))

    def tables(self) -> Iterator[tuple[Tier, KeyTable]]:
        """Yield the tables of all tiers and groups, so that the caller can clear the bit from the common tables."""
        return ((tier, names) for group in self.groups.values() for tier, names in zip(Tier, group.keys, strict=True))

    def other_tables(self) -> Iterator[dict[Any, Any]]:
        """Yield the tables whose entries are not in the common tables."""
        yield self._orphans.table()
        yield self.duplicates
        for group in self.groups.values():
            yield from group.extra_copies
        if self.runs is not None:
            yield from self.runs.tables()

    def memory_bytes(self) -> int:
        """Estimate the memory of the target's own tables, in O(groups)."""
        tails = sum(map(len, self.tails.groups.values())) + sum(len(entries) for _, entries in self.entries or ())
        own = self._orphans.memory_bytes() + TAIL_BYTES * tails
        own += getsizeof(self.incomplete) + getsizeof(self.duplicates) + DUPLICATE_BYTES * len(self.duplicates)
        for group in self.groups.values():
            own += sum(map(getsizeof, group.keys)) + sum(map(getsizeof, group.extra_copies))
        return own + (self.runs.memory_bytes(self.blocks[Tier.GPU]) if self.runs is not None else 0)


def _unknown(_label: Label) -> Key | None:
    return None


def _resize(group: BlockGroup, event: BlocksStored) -> bool:
    """Note the size of the group's blocks on the GPU. Return False for a partial entry."""
    if group.block_tokens is not None and event.block_tokens < group.block_tokens and len(event.hashes) == 1:
        return False
    group.block_tokens = event.block_tokens
    return True
