"""The index snapshot as values and as bytes.

    SavedIndex  the keys' secret, and per target its blocks and the stream cursor at that moment
    frames      one for the head, one per target; a checksum over all of them at the end

Keys are valid only with the secret they were computed with, so the snapshot contains the secret and must be
readable by its owner only. Block names are raw arrays in the machine's byte order: a snapshot is for the same
machine; a snapshot from another machine or version is rejected, never misread. This module uses no files and no
clocks.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, cast

import msgspec
from xxhash import xxh3_64, xxh3_64_digest

from router.kvcache.block_group import Label
from router.kvcache.block_holders import BlockHolders
from router.kvcache.bulk import KeyTable
from router.kvcache.contiguity import ContiguousRuns, SavedRun
from router.kvcache.event_sequencer import StreamCursor
from router.kvcache.events import Key, TargetId, Tier
from router.kvcache.tail_groups import TailGroup, TailShape
from router.kvcache.target_blocks import TargetBlocks

MAGIC = b"warmroute index 1\n"
LENGTH_BYTES = 8
CHECKSUM_BYTES = 8


class SavedTable(NamedTuple):
    """One tier of one KV cache group; arrays of 64 bits."""

    group: int
    tier: int
    hashes: bytes
    keys: bytes  # the keys of `hashes`
    unnamed: bytes  # hashes without a key
    copied: bytes  # hashes with more than one copy
    copies: bytes  # additional copies of each


class SavedTails(NamedTuple):
    """One group that keeps only tails; arrays of 64 bits."""

    group: int
    block_tokens: int
    need: int
    leading: bool
    hashes: bytes
    keys: bytes  # the keys of `hashes`; 0: unknown
    copies: bytes  # of each


class SavedTargetBlocks(NamedTuple):
    """The blocks of one target."""

    model: str
    block_tokens: int | None
    tables: list[SavedTable]
    runs: list[SavedRun] | None  # None: not contiguous
    twins: list[tuple[int, int, int]]  # tier, key, count
    tails: list[SavedTails] = []
    entries: list[SavedTails] = []  # inside blocks


class SavedTarget(NamedTuple):
    """One target: its blocks and how far its stream was applied."""

    target: TargetId
    blocks: SavedTargetBlocks
    cursor: StreamCursor
    stored_blocks: int


class SavedIndex(NamedTuple):
    """A whole snapshot."""

    secret: int
    targets: list[SavedTarget]


class UnusableSnapshot(NamedTuple):
    """The reason why a snapshot cannot be used."""

    reason: str


class _Head(NamedTuple):
    byteorder: str
    secret: int
    targets: int


_encode = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(_Head).decode
_target = msgspec.msgpack.Decoder(SavedTarget).decode


# to and from bytes


def to_bytes(secret: int, targets: list[SavedTarget]) -> Iterator[bytes]:
    """Yield the snapshot in pieces, none larger than a target: a writer never holds the interpreter for long."""
    checksum = xxh3_64(MAGIC)
    yield MAGIC
    values: Iterable[_Head | SavedTarget] = chain([_Head(sys.byteorder, secret, len(targets))], targets)
    for value in values:
        content = _encode(value)
        frame = len(content).to_bytes(LENGTH_BYTES, "little") + content
        checksum.update(frame)
        yield frame
    yield checksum.digest()


def from_bytes(raw: bytes, *, whole: bool = True) -> SavedIndex | UnusableSnapshot:
    """Return the snapshot in `raw`, or why it cannot be used. `whole` False: without its targets."""
    if not raw.startswith(MAGIC):
        return UnusableSnapshot("not a snapshot of this version")
    body = memoryview(raw)[:-CHECKSUM_BYTES]
    if xxh3_64_digest(body) != raw[-CHECKSUM_BYTES:]:
        return UnusableSnapshot("truncated or damaged")
    try:
        first, *others = _frames(body[len(MAGIC) :])
        head = _head(first)
        if head.byteorder != sys.byteorder:
            return UnusableSnapshot("from a machine with another byte order")
        return SavedIndex(head.secret, [_target(frame) for frame in others] if whole else [])
    except ValueError as error:  # msgspec's own errors, and a snapshot without a head
        return UnusableSnapshot(f"cannot be decoded: {error}")


def _frames(body: memoryview) -> Iterator[memoryview]:
    while body:
        length = int.from_bytes(body[:LENGTH_BYTES], "little")
        yield body[LENGTH_BYTES : LENGTH_BYTES + length]
        body = body[LENGTH_BYTES + length :]


# to and from TargetBlocks


def save(blocks: TargetBlocks) -> SavedTargetBlocks:
    """Return the content of `blocks` as a value."""
    tables = [
        _table(number, tier, names, more)
        for number, group in blocks.groups.items()
        for tier, names, more in zip(Tier, group.keys, group.extra_copies, strict=True)
        if names
    ]
    twins = [(int(tier), int(key), count) for (tier, key), count in blocks.duplicates.items()]
    runs = None if blocks.runs is None else list(blocks.runs)
    tails = [_save_tails(number, tail) for number, tail in blocks.tails.groups.items()]
    entries = [_save_tails(number, inside) for number, inside in blocks.entries or ()]
    return SavedTargetBlocks(blocks.model, blocks.block_tokens, tables, runs, twins, tails, entries)


def _save_tails(group: int, tail: TailGroup) -> SavedTails:
    saved = list(tail.saved())
    columns = ([hash_ for hash_, *_ in saved], [key or 0 for _, key, _ in saved], [copies for *_, copies in saved])
    return SavedTails(group, *tail.kind.shape, *map(_raw, columns))


def _table(group: int, tier: Tier, names: KeyTable, more: dict[Label, int]) -> SavedTable:
    return SavedTable(group, int(tier), *names.save(), _raw(more), _raw(more.values()))


def restore(blocks: TargetBlocks, saved: SavedTargetBlocks, holders: BlockHolders) -> None:
    """Fill `blocks` (empty) from `saved`, and add the restored blocks to `holders`."""
    blocks.block_tokens = saved.block_tokens
    blocks.duplicates.update({(Tier(tier), Key(key)): count for tier, key, count in saved.twins})
    keyed: dict[int, set[Label]] = {}  # by group
    keyless: dict[int, set[Label]] = {}
    for table in saved.tables:
        tier, group = Tier(table.tier), blocks.group(table.group)
        hashes, keys = _numbers(table.hashes), cast("list[Key]", _numbers(table.keys))
        names = group.keys[tier]
        if tier is Tier.GPU:
            group.block_tokens = saved.block_tokens
        for hash_, key in zip(hashes, keys, strict=True):
            names.set(hash_, key)
        unnamed = _numbers(table.unnamed)
        for hash_ in unnamed:
            names.set(hash_, None)
        keyless.setdefault(table.group, set()).update(unnamed)
        keyed.setdefault(table.group, set()).update(hashes)
        group.extra_copies[tier].update(zip(_numbers(table.copied), _numbers(table.copies), strict=True))
        blocks.blocks[tier] += len(holders.add(tier, keys, blocks.bit))
    for number, hashes_with_key in keyed.items():
        blocks.groups[number].keyed = len(hashes_with_key)
        blocks.groups[number].keyless = len(keyless[number])
    if len(blocks.groups) > 1:
        for group in blocks.groups.values():
            blocks.note_groups(cast("list[Key]", _numbers(group.keys[Tier.GPU].save()[1])))
    blocks.runs = None if saved.runs is None else ContiguousRuns(saved.runs)
    for one in saved.tails:
        _restore_tails(blocks.tails.group(one.group, TailShape(one.block_tokens, one.need, one.leading)), one)
    for one in saved.entries:
        _restore_tails(blocks.find_entries(one.block_tokens).group(one.group), one)


def _restore_tails(tail: TailGroup, saved: SavedTails) -> None:
    for hash_, number, copies in zip(*map(_numbers, (saved.hashes, saved.keys, saved.copies)), strict=True):
        tail.store([hash_] * copies, {hash_: Key(number) if number else None}.get)


def _raw(numbers: Iterable[int]) -> bytes:
    return array("Q", numbers).tobytes()


def _numbers(raw: bytes) -> list[int]:
    return array("Q", raw).tolist()
