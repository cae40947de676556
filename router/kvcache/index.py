"""The block index: which target holds which block, in which tier.

    key -> one bit per target that holds it, for each tier        `block_holders.py`: read by requests
        -> the same for tails of hybrid models, by shape          `tail_groups.py`
    target -> group -> tier -> engine hash -> key                 `target_blocks.py`: written by events

This module assigns bits to targets. Forgetting a target is O(1): its bit is retired, so no match can see it, and
each of the following events cleans a slice of the entries left behind, more than the event adds; so does `sweep`. A
restarted engine with 200,000 blocks would otherwise stop the event loop for 50 ms.

All models and block sizes share the index: root and block length make their keys distinct. This module uses no
time, sequence numbers or wire formats. Tests compare it with a brute-force index (`tests/suites/naive_index.py`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence, Set
from itertools import compress
from typing import Any, NamedTuple, cast

from router.kvcache.block_group import Label
from router.kvcache.block_holders import BlockHolders, single_bits
from router.kvcache.block_keys import Keyring
from router.kvcache.bulk import HOLDER_BYTES, KeyTable
from router.kvcache.events import (
    BlocksCleared,
    BlocksRemoved,
    BlocksStored,
    CacheEvent,
    EngineHash,
    Key,
    TailsStored,
    TargetId,
    Tier,
)
from router.kvcache.partial_entries import PartialEntries, split_into_units
from router.kvcache.recent_removals import RecentRemovals
from router.kvcache.snapshot_format import SavedTargetBlocks, restore, save
from router.kvcache.tail_groups import TailShape, TailTable, clear_tail, find_tails
from router.kvcache.target_blocks import TargetBlocks
from router.kvcache.tokenized_prompt import TokenizedPrompt

AS_FLAGS = bytes.maketrans(b"01", b"\0\1")
SWEEP_BLOCKS = 128  # entries cleaned per event, besides two for each block that the event adds: about 100 us


class HeldBlocks(NamedTuple):
    """Leading blocks that a target holds without a hole. `cpu` counts blocks in GPU or CPU, `disk` in any tier."""

    gpu: int
    cpu: int
    disk: int


class EqualHolders(NamedTuple):
    """Targets that hold equally many leading blocks of a prompt, and re-use equally many of those on their GPU;
    `BlockIndex.targets_of` resolves their bits.
    """

    bits: int
    held: HeldBlocks
    reused: int


class IndexStats(NamedTuple):
    """Sizes of the index content of one target."""

    blocks: tuple[int, int, int]  # distinct keys per tier
    orphans: int  # blocks waiting for an unknown parent
    bytes: int  # estimate: the target's own tables and its share of the common ones
    contiguous: bool  # no block without its predecessor: matched by bisection
    partial: int = 0  # entries inside blocks, since the target joined


class TargetSize(NamedTuple):
    """Estimates of the index content of one target, computed in O(1)."""

    blocks: int  # in all tiers and groups
    bytes: int


class BlockCopies(NamedTuple):
    """Blocks of all targets in one tier."""

    held: int
    different: int


class _Retired(NamedTuple):
    bit: int
    tables: list[tuple[Tier, KeyTable]]
    tails: list[tuple[TailTable, dict[Key, int]]]  # common tables, and the keys of which they may have the bit
    rest: list[
        dict[Any, Any]
    ]  # other tables, emptied in pieces: freeing a million entries at once takes as long as a request may wait


class BlockIndex:
    """The blocks of every joined target. `orphan_blocks` limits, per target, the blocks that wait for their
    parent.
    """

    def __init__(self, keyring: Keyring, orphan_blocks: int = 10_000) -> None:
        self._keyring = keyring
        self._orphan_blocks = orphan_blocks
        self._blocks: dict[TargetId, TargetBlocks] = {}
        self._restored: dict[TargetId, TargetBlocks] = {}  # from a snapshot; the targets have not joined yet
        self._targets: dict[int, TargetId] = {}  # by bit
        self._by_position: list[TargetId | None] | None = None  # by the bit's position; None: rebuilt on demand
        self.hybrid: set[TargetId] = set()  # with groups that keep only tails: they re-use less than they hold
        self.odd: set[TargetId] = set()  # of those, the targets with blocks of several sizes or several full attentions
        self.units: dict[TargetId, int] = {}  # tokens of the units, smaller than a block, in which a target re-uses
        self.all_bits = 0  # bits of all joined targets
        self._contiguous_bits = 0  # of those, the targets that can be bisected
        self._holders = BlockHolders()
        self._tail_tables: dict[TailShape, TailTable] = {}
        self._shaped: dict[tuple[TailShape, ...], int] | None = {}  # bits of hybrid targets; None: made on demand
        self._retired: deque[_Retired] = deque()
        self._free_bits: list[int] = []
        self._bits = 0  # bits created so far

    # membership

    def join(self, target: TargetId, model: str) -> None:
        """Add `target` with no blocks; its blocks are of `model`. Joining again forgets the blocks held so far."""
        self.leave(target)
        if (saved := self._restored.pop(target, None)) is not None:
            self._retire(saved)
        self._register(target, self._allocate(model))

    def join_restored(self, target: TargetId, model: str) -> bool:
        """Add `target` with the blocks restored from a snapshot. Return False if there are none for `target` and
        `model`.
        """
        blocks = self._restored.get(target)
        if blocks is None or blocks.model != model:
            return False
        self.leave(target)
        self._register(target, self._restored.pop(target))
        return True

    def leave(self, target: TargetId) -> None:
        """Remove `target`; a no-op for an unknown target."""
        if (blocks := self._blocks.pop(target, None)) is not None:
            del self._targets[blocks.bit]
            self.hybrid.discard(target)
            self.units.pop(target, None)
            self._shaped = None
            self._by_position = None
            self.all_bits &= ~blocks.bit
            self._contiguous_bits &= ~blocks.bit
            self._retire(blocks)

    def forget(self, target: TargetId) -> None:
        """Drop all blocks of `target`, and keep its block size until an event changes it. Raises KeyError if
        `target` has not joined.
        """
        before = self._blocks[target]
        self.leave(target)
        blocks = self._allocate(before.model)
        blocks.block_tokens = before.block_tokens
        blocks.partial, blocks.counts_copies, blocks.repeated = before.partial, before.counts_copies, before.repeated
        blocks.tails.adopt_groups(before.tails)
        if before.entries is not None:
            blocks.entries = PartialEntries(before.entries.unit)
        self._register(target, blocks)

    def _allocate(self, model: str) -> TargetBlocks:
        self.sweep()
        if self._free_bits:
            bit = self._free_bits.pop()
        else:
            bit = 1 << self._bits
            self._bits += 1
        return TargetBlocks(model, bit, self._holders, self._tail_tables, self._keyring, self._orphan_blocks)

    def _register(self, target: TargetId, blocks: TargetBlocks) -> None:
        self._targets[blocks.bit] = target
        self._blocks[target] = blocks
        if blocks.tails.groups:
            self.hybrid.add(target)
            self._shaped = None
        self._note_unit(target, blocks)
        self._by_position = None
        self.all_bits |= blocks.bit
        if blocks.contiguous:
            self._contiguous_bits |= blocks.bit

    def _retire(self, blocks: TargetBlocks) -> None:
        for tier in Tier:
            self._holders.blocks[tier] -= blocks.blocks[tier]
        tables = [(tier, names) for tier, names in blocks.tables() if names]
        tails = [kind.retire() for kind in blocks.tails.kinds.values()]
        rest = [table for table in blocks.other_tables() if table]
        if tables or tails or rest:
            self._retired.append(_Retired(blocks.bit, tables, tails, rest))
        else:
            self._free_bits.append(blocks.bit)

    def sweep(self, entries: int = SWEEP_BLOCKS) -> bool:
        """Remove up to `entries` entries of retired bits, from the common tables as well; free the bits that have
        none left. Return False if there were no retired bits.
        """
        if not self._retired:
            return False
        while self._retired and entries > 0:
            retired = self._retired[0]
            entries = self._sweep(retired, entries)
            if not retired.tables and not retired.tails and not retired.rest:
                self._free_bits.append(retired.bit)
                self._retired.popleft()
        return True

    def _sweep(self, retired: _Retired, entries: int) -> int:
        """Remove up to `entries` entries. Return how many more may be removed."""
        bit, tables, tails, rest = retired
        while tables and entries > 0:
            tier, names = tables[-1]
            before = len(names)
            self._holders.clear(tier, cast("list[Key]", names.take_some(entries)), bit)
            entries -= before - len(names)
            if not names:
                tables.pop()
        while tails and entries > 0:
            table, keys = tails[-1]
            entries -= 1
            if keys:
                clear_tail(table, keys.popitem()[0], bit)
            else:
                tails.pop()
        while rest and entries > 0:
            entries -= 1
            rest[-1].popitem()
            if not rest[-1]:
                rest.pop()
        return entries

    # snapshots

    def snapshot(self, target: TargetId) -> SavedTargetBlocks | None:
        """Return the blocks of `target`, to be restored in another process with the same keyring; 30 ns per
        block.
        """
        blocks = self._blocks.get(target) or self._restored.get(target)
        return None if blocks is None else save(blocks)

    def restore(self, target: TargetId, saved: SavedTargetBlocks) -> None:
        """Load the blocks of `target` from a snapshot; these blocks count once `target` joins. 0.3 us per block. A
        later snapshot of the same target replaces an earlier one.
        """
        self.discard_restored(target)
        blocks = self._restored[target] = self._allocate(saved.model)
        restore(blocks, saved, self._holders)

    def discard_restored(self, target: TargetId) -> None:
        """Drop the blocks restored for `target` if it has not joined."""
        if (blocks := self._restored.pop(target, None)) is not None:
            self._retire(blocks)

    # events

    def apply(self, target: TargetId, event: CacheEvent) -> list[Key]:
        """Apply one event of `target` (joined: KeyError otherwise). Return the keys that entered its GPU tier."""
        blocks = self._blocks[target]
        if self._retired:
            self.sweep(SWEEP_BLOCKS + (2 * len(event.hashes) if isinstance(event, BlocksStored) else 0))
        hybrid = target in self.hybrid
        layout = blocks.layout if hybrid else None
        match event:
            case BlocksStored():
                entered = blocks.store(event)
            case TailsStored():
                blocks.store_tails(event)
                entered, hybrid = [], True
                self.hybrid.add(target)
            case BlocksRemoved():
                entered = []
                blocks.remove(event)
            case BlocksCleared():  # the event names no tier: clearing all is the safe reading
                self.forget(target)
                return []
        if hybrid and blocks.layout != layout:
            self._shaped = None
        if blocks.entries is not None:
            self._note_unit(target, blocks)
        self._note_contiguity(blocks)
        return entered

    def _note_unit(self, target: TargetId, blocks: TargetBlocks) -> None:
        if (unit := blocks.unit) is not None:
            self.units[target] = unit
        else:
            self.units.pop(target, None)

    def _note_contiguity(self, blocks: TargetBlocks) -> None:
        if blocks.runs is None and self._contiguous_bits & blocks.bit:
            self._contiguous_bits ^= blocks.bit

    # blocks whose events were missed

    def watch_removals(self, target: TargetId, watch: bool) -> int:
        """Start or stop recording the removals of `target` (joined: KeyError otherwise). Return how many of its
        cached blocks have unknown chains.
        """
        blocks = self._blocks[target]
        if not watch:
            blocks.removals = None
        elif blocks.removals is None:
            blocks.removals = RecentRemovals()
        return blocks.keyless_blocks

    def removals(self, target: TargetId) -> RecentRemovals | None:
        """Return the removals of `target` (joined: KeyError otherwise); None: not recorded."""
        return self._blocks[target].removals

    def find_parents(self, target: TargetId, hashes: Set[EngineHash]) -> set[EngineHash]:
        """Return those of `hashes`, 60 bits each, whose following blocks `target` holds with unknown chains."""
        blocks = self._blocks.get(target)
        return set() if blocks is None else cast("set[EngineHash]", blocks.find_parents(hashes))

    def knows_any(self, target: TargetId, hashes: Sequence[EngineHash]) -> bool:
        """Return whether `target` (joined: KeyError otherwise) holds one of `hashes`, or a block that waits for one
        of them as its parent.
        """
        return any(map(self._blocks[target].knows, hashes))

    def recall(
        self, target: TargetId, hashes: Sequence[EngineHash], keys: Sequence[Key], removed: Collection[int]
    ) -> list[Key]:
        """Add the first blocks of a chain, cached on the GPU of `target` (joined: KeyError otherwise) although no
        event announced them, up to the first block in `removed`. Return the keys that entered the GPU tier.
        """
        blocks = self._blocks[target]
        entered = blocks.recall(hashes, keys, removed)
        self._note_contiguity(blocks)
        return entered

    def recall_tails(self, target: TargetId, hashes: Sequence[EngineHash]) -> None:
        """Add the tails without which the engine of `target` (joined: KeyError otherwise) could not have re-used a
        prompt up to the last of these blocks.
        """
        self._blocks[target].recall_tails(hashes)

    def awaits_names(self, target: TargetId) -> bool:
        """Return whether `target` has entries inside blocks whose places in chains are unknown."""
        blocks = self._blocks.get(target)
        return blocks is not None and any(blocks.unnamed_entries())

    def name_entries(self, target: TargetId, units: Mapping[EngineHash, Key]) -> bool:
        """Set the keys of entries inside blocks of `target` (joined: KeyError otherwise), given the hashes that its
        engine computes of a prompt's units. Return whether there were any.
        """
        return self._blocks[target].name_entries(cast("Mapping[Label, Key]", units))

    # requests

    def split_into_units(self, prompt: TokenizedPrompt, block_tokens: int, unit: int) -> list[Key]:
        """Return the keys of all whole units of `prompt` (with `origin`), as `count_reused_units` needs them."""
        return split_into_units(self._keyring, prompt, block_tokens, unit)

    def match(self, keys: Sequence[Key], targets: Collection[TargetId]) -> dict[TargetId, HeldBlocks]:
        """Return how far each of `targets` holds the chain `keys` from its start; targets without any are
        absent. Those in `hybrid` may re-use less: see `match_reused`.
        """
        return self._resolve(self._match_targets(keys, targets))

    def match_reused(
        self, keys: Sequence[Key], targets: Collection[TargetId]
    ) -> tuple[dict[TargetId, HeldBlocks], dict[TargetId, int]]:
        """Return the result of `match`, and how many blocks those targets re-use that re-use less than they hold on
        their GPU.
        """
        found = self._match_targets(keys, targets)
        held = self._resolve(found)
        if not self.hybrid:
            return held, {}
        reused: dict[TargetId, int] = {}
        for group in self._split_by_reuse(keys, found):
            if group.reused != group.held.gpu:
                reused.update(dict.fromkeys(self.targets_of(group.bits), group.reused))
        for target in self.odd.intersection(held):
            reused[target] = self.count_reusable(target, keys, held[target].gpu)
        return held, reused

    def _resolve(self, found: Sequence[EqualHolders]) -> dict[TargetId, HeldBlocks]:
        held: dict[TargetId, HeldBlocks] = {}
        for group in found:
            for target in self.targets_of(group.bits):
                held[target] = group.held
        return held

    def _match_targets(self, keys: Sequence[Key], targets: Collection[TargetId]) -> list[EqualHolders]:
        whole = other = 0
        for target in targets:
            if (blocks := self._blocks.get(target)) is not None:
                if blocks.runs is not None:
                    whole |= blocks.bit
                else:
                    other |= blocks.bit
        return self._match(keys, whole, other)

    def _split_by_reuse(self, keys: Sequence[Key], found: Sequence[EqualHolders]) -> list[EqualHolders]:
        """Split groups by how many blocks their targets re-use, which is not known of `odd` ones."""
        split: list[EqualHolders] = []
        for shapes, members in self._members_by_shape().items():
            held = [(one.held.gpu, one.bits & members) for one in found if one.held.gpu and one.bits & members]
            kinds = [(shape, self._tail_tables[shape]) for shape in shapes]
            tails = find_tails(keys, sorted(held, reverse=True), kinds) if held else []
            others: list[EqualHolders] = []
            for one in found:
                bits = one.bits & members
                for reused, some in tails:
                    if both := bits & some:
                        split.append(EqualHolders(both, one.held, reused))
                        bits ^= both
                if bits:
                    split.append(EqualHolders(bits, one.held, 0))
                if rest := one.bits & ~members:
                    others.append(EqualHolders(rest, one.held, one.reused))
            found = others
        return [*split, *found]

    def _members_by_shape(self) -> dict[tuple[TailShape, ...], int]:
        """Return the bits of the hybrid targets with blocks of one size, by the shapes of their tails."""
        if self._shaped is None:
            self._shaped, self.odd = {}, set()
            for target in self.hybrid:
                blocks = self._blocks[target]
                if (shapes := blocks.equal_shapes) is None:
                    self.odd.add(target)
                else:
                    self._shaped[shapes] = self._shaped.get(shapes, 0) | blocks.bit
        return self._shaped

    def count_reusable(self, target: TargetId, keys: Sequence[Key], blocks: int, *, drafts: bool = False) -> int:
        """Return how many of the first `blocks` blocks of the chain `keys`, all held on the GPU of `target` (joined:
        KeyError otherwise), its engine re-uses: less than all only where `target` is in `hybrid`, or `drafts`.
        """
        return self._blocks[target].count_reusable(keys, blocks, drafts=drafts)

    def count_reused_units(self, target: TargetId, units: Sequence[Key], blocks: int, *, drafts: bool = False) -> int:
        """Return how many of the units of a prompt, of whose blocks `target` (in `self.units`) holds `blocks` on its
        GPU, its engine re-uses. `units`: the keys of those that can be re-used. `drafts`: the last is computed again.
        """
        return self._blocks[target].count_reused_units(units, blocks, drafts=drafts)

    def find_end(self, target: TargetId, blocks: int) -> int:
        """Return at which of the leading blocks of a prompt of `blocks` whole blocks the engine of `target` (joined:
        KeyError otherwise) keeps tails, to be re-used by a prompt that goes on.
        """
        return self._blocks[target].find_end(blocks)

    def match_all(self, keys: Sequence[Key]) -> list[EqualHolders]:
        """Return all joined targets in groups of bits, the last group without blocks. The cost grows with the
        number of different depths, not of targets. What targets in `odd` re-use is not known.
        """
        found = self._match(keys, self._contiguous_bits, self.all_bits ^ self._contiguous_bits)
        if self.hybrid:
            found = self._split_by_reuse(keys, found)
        rest = self.all_bits
        for one in found:
            rest ^= one.bits
        return [*found, EqualHolders(rest, HeldBlocks(0, 0, 0), 0)] if rest else found

    def targets_of(self, bits: int) -> list[TargetId]:
        """Return the targets of `bits` of an `EqualHolders`. 0.2 us each for few, 20 ns per joined target for
        many.
        """
        if bits.bit_count() * 10 < bits.bit_length():
            return [self._targets[bit] for bit in single_bits(bits)]
        if self._by_position is None:
            self._by_position = [self._targets.get(1 << place) for place in range(self.all_bits.bit_length())]
        chosen = bin(bits)[:1:-1].encode().translate(AS_FLAGS)  # the lowest bit first
        return [target for target in compress(self._by_position, chosen) if target is not None]

    def _match(self, keys: Sequence[Key], whole: int, other: int) -> list[EqualHolders]:
        runs = self._holders.bisect(keys, whole)
        found = [EqualHolders(bits, HeldBlocks(blocks, blocks, blocks), blocks) for bits, blocks in runs.items()]
        if not other:
            return found
        gpu = cpu = disk = self._holders.walk(Tier.GPU, keys, other)
        if self._holders.tables[Tier.CPU]:
            cpu = disk = self._holders.walk(Tier.CPU, keys, other)
        if self._holders.tables[Tier.DISK]:
            disk = self._holders.walk(Tier.DISK, keys, other)
        if disk is gpu:
            walked = [EqualHolders(bits, HeldBlocks(blocks, blocks, blocks), blocks) for bits, blocks in gpu.items()]
            return [*found, *walked]
        for on_disk, last in disk.items():
            for bits, middle in _split_by_depth(on_disk, cpu):
                parts = _split_by_depth(bits, gpu)
                found += [EqualHolders(both, HeldBlocks(first, middle, last), first) for both, first in parts]
        return found

    def block_tokens(self, target: TargetId) -> int | None:
        """Return the tokens per block in the last event of `target`; None: no event yet, or an unknown target."""
        blocks = self._blocks.get(target)
        return blocks.block_tokens if blocks is not None else None

    def keys(self, target: TargetId) -> Sequence[Key]:
        """Return the keys of the GPU blocks of `target` (joined: KeyError otherwise), in no order; 30 ns per
        block.
        """
        return self._blocks[target].gpu_keys()

    def has_joined(self, target: TargetId) -> bool:
        return target in self._blocks

    def holds(self, target: TargetId, key: Key) -> bool:
        """Return whether `target` (joined: KeyError otherwise) holds a block on its GPU."""
        return bool(self._holders.tables[Tier.GPU].bits(key) & self._blocks[target].bit)

    def repeated_blocks(self, target: TargetId) -> int:
        """Return how often a joined `target` announced a block on its GPU that the index had there."""
        return self._blocks[target].repeated

    def held_blocks(self, target: TargetId) -> int:
        """Return how many blocks with known chains `target` holds, each once whatever its tiers; 0 for an unknown
        target.

        Groups keep different layers of the same blocks, so the fullest group counts.
        """
        blocks = self._blocks.get(target)
        return 0 if blocks is None else blocks.keyed_blocks

    def holders(self, key: Key) -> tuple[list[TargetId], list[TargetId]]:
        """Return the targets that hold a block on the GPU, and those that hold it in a slower tier only."""
        gpu, *slower = (table.bits(key) & self.all_bits for table in self._holders.tables)
        return self.targets_of(gpu), self.targets_of((slower[0] | slower[1]) & ~gpu)

    def copies(self, tier: Tier) -> BlockCopies:
        """Return how many blocks all targets hold in a tier, and how many different ones. O(1). Entries that
        targets left behind count as different blocks until they are swept.
        """
        return BlockCopies(self._holders.blocks[tier], len(self._holders.tables[tier]))

    def fits(self, target: TargetId, gpu_blocks: int) -> bool:
        """Return whether a GPU of `gpu_blocks` blocks has room for those of `target`: see `TargetBlocks.fits`."""
        return self._blocks[target].fits(gpu_blocks)

    def take_uncounted(self, target: TargetId) -> int:
        """Return how many announced GPU blocks of `target` took no room on the GPU, since the last call."""
        blocks = self._blocks[target]
        uncounted, blocks.uncounted = blocks.uncounted, 0
        return uncounted

    def size(self, target: TargetId) -> TargetSize:
        """Return the estimated size of the blocks held for `target` (joined: KeyError otherwise)."""
        blocks = self._blocks[target]
        held = sum(blocks.blocks) + blocks.orphans
        return TargetSize(held, blocks.memory_bytes() + HOLDER_BYTES * held)

    def stats(self, target: TargetId) -> IndexStats:
        """Return the sizes of the index content of `target` (joined: KeyError otherwise)."""
        blocks = self._blocks[target]
        own = blocks.memory_bytes() + self._holders.memory_bytes(blocks.blocks)
        gpu, cpu, disk = blocks.blocks
        return IndexStats((gpu, cpu, disk), blocks.orphans, own, blocks.contiguous, blocks.partial)


def _split_by_depth(bits: int, runs: dict[int, int]) -> list[tuple[int, int]]:
    """Split `bits` by how many blocks `runs` gives them; bits that are not in `runs` hold 0."""
    parts = []
    for some, blocks in runs.items():
        if both := bits & some:
            parts.append((both, blocks))
            bits ^= both
    return [*parts, (bits, 0)] if bits else parts
