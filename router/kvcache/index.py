"""Which target holds which block: the one answer that everything else here exists for.

    key -> one bit per target that holds it, for each tier        `holders.py`: what a request reads
    target -> group -> tier -> engine hash -> our key             `shelf.py`: what an event writes

Here is who is there, and which bit is whose. Forgetting a target costs nothing at once: its bit is retired, so no
match can see it, and the following events each clean a slice of what it left behind. A restarted engine with 200,000
blocks would otherwise stop the loop for 50 ms.

All models and block sizes share the index: root and block length make their keys distinct. Nothing here knows time,
sequence numbers or wire formats. `naive.py` says the same without the cleverness, and tests hold the two together.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from itertools import compress
from sys import getsizeof
from typing import NamedTuple

from router.kvcache.block_holders import BlockHolders, single
from router.kvcache.block_keys import Keyring
from router.kvcache.events import BlocksCleared, BlocksRemoved, BlocksStored, CacheEvent, Key, TargetId, Tier
from router.kvcache.snapshot_format import SavedTargetBlocks, restore, save
from router.kvcache.target_blocks import INT_BYTES, Names, TargetBlocks

AS_FLAGS = bytes.maketrans(b"01", b"\0\1")
SWEEP_BLOCKS = 128  # cleaned per event: about 100 us


class HeldBlocks(NamedTuple):
    """Leading blocks that a target holds without a hole. Cumulative: `cpu` counts blocks in GPU or CPU, and so on."""

    gpu: int
    cpu: int
    disk: int


class EqualHolders(NamedTuple):
    """Targets that hold equally much of a prompt. Their bits mean something to the index only."""

    bits: int
    held: HeldBlocks


class IndexStats(NamedTuple):
    blocks: tuple[int, int, int]  # distinct keys per tier
    orphans: int  # blocks waiting for an unknown parent
    bytes: int  # an estimate: this target's own tables, and its share of the common ones
    contiguous: bool  # no block without the one before it: matched by bisection


class _Retired(NamedTuple):
    bit: int
    tables: list[tuple[Tier, Names]]


class BlockIndex:
    """Knows what every joined target holds. `orphan_blocks` bounds what waits for its parent, per target."""

    def __init__(self, keyring: Keyring, orphan_blocks: int = 10_000) -> None:
        self._keyring = keyring
        self._orphan_blocks = orphan_blocks
        self._shelves: dict[TargetId, TargetBlocks] = {}
        self._asleep: dict[TargetId, TargetBlocks] = {}  # from a snapshot: its target has not joined yet
        self._targets: dict[int, TargetId] = {}  # by bit
        self._by_place: list[TargetId | None] | None = None  # by the bit's place; None: to be made when asked for
        self._everybody = 0  # their bits,
        self._whole = 0  # and of those, whose runs can be bisected
        self._holders = BlockHolders()
        self._retired: deque[_Retired] = deque()
        self._free_bits: list[int] = []
        self._bits = 0  # ever made

    # Who is there

    def join(self, target: TargetId, model: str) -> None:
        """`target` holds nothing yet; its blocks are of `model`. Joining again forgets."""
        self.leave(target)
        if (saved := self._asleep.pop(target, None)) is not None:
            self._retire(saved)
        self._stand(target, self._open(model))

    def join_restored(self, target: TargetId, model: str) -> bool:
        """`target` holds what it did when it was saved. False: there is nothing saved of it and this model."""
        shelf = self._asleep.get(target)
        if shelf is None or shelf.model != model:
            return False
        self.leave(target)
        self._stand(target, self._asleep.pop(target))
        return True

    def leave(self, target: TargetId) -> None:
        """Nothing is known of `target` any more; no harm if nothing was."""
        if (shelf := self._shelves.pop(target, None)) is not None:
            del self._targets[shelf.bit]
            self._by_place = None
            self._everybody &= ~shelf.bit
            self._whole &= ~shelf.bit
            self._retire(shelf)

    def forget(self, target: TargetId) -> None:
        """`target` (joined) holds nothing, in any tier. Its block size is kept until it tells another."""
        before = self._shelves[target]
        self.leave(target)
        shelf = self._open(before.model)
        shelf.block_tokens = before.block_tokens
        self._stand(target, shelf)

    def _open(self, model: str) -> TargetBlocks:
        if self._free_bits:
            bit = self._free_bits.pop()
        else:
            bit = 1 << self._bits
            self._bits += 1
        return TargetBlocks(model, bit, self._holders, self._keyring, self._orphan_blocks)

    def _stand(self, target: TargetId, shelf: TargetBlocks) -> None:
        self._targets[shelf.bit] = target
        self._shelves[target] = shelf
        self._by_place = None
        self._everybody |= shelf.bit
        if shelf.contiguous:
            self._whole |= shelf.bit

    def _retire(self, shelf: TargetBlocks) -> None:
        for tier in Tier:
            self._holders.blocks[tier] -= shelf.blocks[tier]
        self._retired.append(_Retired(shelf.bit, list(shelf.tables())))

    def _sweep(self) -> None:
        """Takes a slice of a retired bit's blocks off the common tables; the bit is free when none is left."""
        bit, tables = self._retired[0]
        for _ in range(SWEEP_BLOCKS):
            while tables and not tables[-1][1]:
                tables.pop()
            if not tables:
                self._free_bits.append(bit)
                self._retired.popleft()
                return
            tier, names = tables[-1]
            if (key := names.popitem()[1]) is not None:
                self._holders.clear(tier, (key,), bit)

    # A snapshot

    def snapshot(self, target: TargetId) -> SavedTargetBlocks | None:
        """What `target` holds, to be restored in another process with the same keyring. 30 ns per block."""
        shelf = self._shelves.get(target) or self._asleep.get(target)
        return None if shelf is None else save(shelf)

    def restore(self, target: TargetId, saved: SavedTargetBlocks) -> None:
        """`target` held this; it counts from when it is woken. 0.3 us per block."""
        shelf = self._asleep[target] = self._open(saved.model)
        restore(shelf, saved, self._holders)

    def discard_restored(self, target: TargetId) -> None:
        """What was restored of `target` is forgotten if it has not joined."""
        if (shelf := self._asleep.pop(target, None)) is not None:
            self._retire(shelf)

    # What events say

    def apply(self, target: TargetId, event: CacheEvent) -> list[Key]:
        """Takes in one event of `target` (joined: KeyError). Returns the keys that entered its GPU tier by this."""
        if self._retired:
            self._sweep()
        shelf = self._shelves[target]
        match event:
            case BlocksStored():
                entered = shelf.store(event)
            case BlocksRemoved():
                entered = []
                shelf.remove(event)
            case BlocksCleared():  # has no tier: the safe reading is all of them
                self.forget(target)
                return []
        if shelf.runs is None and self._whole & shelf.bit:
            self._whole ^= shelf.bit
        return entered

    # What requests ask

    def match(self, keys: Sequence[Key], targets: Collection[TargetId]) -> dict[TargetId, HeldBlocks]:
        """How far each of `targets` holds the chain `keys` from its first block; who holds nothing is absent."""
        whole = other = 0
        for target in targets:
            if (shelf := self._shelves.get(target)) is not None:
                if shelf.runs is not None:
                    whole |= shelf.bit
                else:
                    other |= shelf.bit
        found: dict[TargetId, HeldBlocks] = {}
        for bits, held in self._reach(keys, whole, other):
            for bit in single(bits):
                found[self._targets[bit]] = held
        return found

    def match_all(self, keys: Sequence[Key]) -> list[EqualHolders]:
        """The same of every target there is, without naming any: those that hold nothing are in it as well. What it
        takes grows with how differently far they hold it, not with how many they are.
        """
        found = self._reach(keys, self._whole, self._everybody ^ self._whole)
        rest = self._everybody
        for bits, _ in found:
            rest ^= bits
        return [*found, EqualHolders(rest, HeldBlocks(0, 0, 0))] if rest else found

    @property
    def all_bits(self) -> int:
        """All targets' bits."""
        return self._everybody

    def targets_of(self, bits: int) -> list[TargetId]:
        """Who goes `EqualHolders`. 0.2 us for each of a few, 20 ns for each that there is where they are many."""
        if bits.bit_count() * 10 < bits.bit_length():
            return [self._targets[bit] for bit in single(bits)]
        if self._by_place is None:
            self._by_place = [self._targets.get(1 << place) for place in range(self._everybody.bit_length())]
        chosen = bin(bits)[:1:-1].encode().translate(AS_FLAGS)  # the lowest bit first
        return [target for target in compress(self._by_place, chosen) if target is not None]

    def _reach(self, keys: Sequence[Key], whole: int, other: int) -> list[EqualHolders]:
        found = [
            EqualHolders(bits, HeldBlocks(blocks, blocks, blocks))
            for bits, blocks in self._holders.bisect(keys, whole).items()
        ]
        if not other:
            return found
        gpu = cpu = disk = self._holders.walk(Tier.GPU, keys, other)
        if self._holders.tables[Tier.CPU]:
            cpu = disk = self._holders.walk(Tier.CPU, keys, other)
        if self._holders.tables[Tier.DISK]:
            disk = self._holders.walk(Tier.DISK, keys, other)
        if disk is gpu:
            return [*found, *(EqualHolders(bits, HeldBlocks(blocks, blocks, blocks)) for bits, blocks in gpu.items())]
        for on_disk, last in disk.items():
            for bits, middle in _parted(on_disk, cpu):
                found += [EqualHolders(both, HeldBlocks(first, middle, last)) for both, first in _parted(bits, gpu)]
        return found

    def block_tokens(self, target: TargetId) -> int | None:
        """Tokens per block as last told by `target`; None: it has told nothing, or is unknown."""
        shelf = self._shelves.get(target)
        return shelf.block_tokens if shelf is not None else None

    def held_blocks(self, target: TargetId) -> int:
        """How many blocks of known chains `target` holds, each once, whatever tiers it is in; 0 for a stranger. Groups
        keep different layers of the same blocks: the fullest one counts.
        """
        shelf = self._shelves.get(target)
        return 0 if shelf is None else shelf.keyed_blocks

    def stats(self, target: TargetId) -> IndexStats:
        """Sizes of what is known of `target` (joined: KeyError)."""
        shelf = self._shelves[target]
        own = shelf.memory_bytes()
        for tier, table in zip(Tier, self._holders.tables, strict=True):
            common = getsizeof(table) + INT_BYTES * len(table)  # bits of one holder are its own object
            own += common * shelf.blocks[tier] // max(1, self._holders.blocks[tier])
        gpu, cpu, disk = shelf.blocks
        return IndexStats((gpu, cpu, disk), shelf.orphans, own, shelf.contiguous)


def _parted(bits: int, runs: dict[int, int]) -> list[tuple[int, int]]:
    """`bits` by what they hold in `runs`; who is not in it holds 0."""
    parts = []
    for some, blocks in runs.items():
        if both := bits & some:
            parts.append((both, blocks))
            bits ^= both
    return [*parts, (bits, 0)] if bits else parts
