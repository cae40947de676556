"""What a snapshot holds, as values and as bytes: the index over a restart of the router.

    SavedIndex  the keys' secret, and per target: what it holds, and the stream's cursor when that was so
    frames      one for the head, one per target; a checksum over all of them at the end

Keys mean something only with the secret they were made with, so it is in there, and whoever keeps the file must keep
it to themselves. Block names are raw arrays in the machine's byte order: a snapshot is for the same machine, and from
another one, or in another version, it is unusable, never wrong. Knows no files and no clocks.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, cast

import msgspec
from xxhash import xxh3_64, xxh3_64_digest

from router.kvcache.block_holders import BlockHolders
from router.kvcache.contiguity import ContiguousRun, ContiguousRuns
from router.kvcache.event_sequencer import StreamCursor
from router.kvcache.events import Key, TargetId, Tier
from router.kvcache.target_blocks import Label, Names, TargetBlocks

MAGIC = b"warmroute index 1\n"
LENGTH_BYTES = 8
CHECKSUM_BYTES = 8


class SavedTable(NamedTuple):
    """One tier of one KV cache group; arrays of 64 bits."""

    group: int
    tier: int
    hashes: bytes
    keys: bytes  # of these
    unnamed: bytes  # hashes without a key
    copied: bytes  # hashes of which there are more copies
    copies: bytes  # how many more


class SavedTargetBlocks(NamedTuple):
    model: str
    block_tokens: int | None
    tables: list[SavedTable]
    runs: list[ContiguousRun] | None  # None: it was not whole
    twins: list[tuple[int, int, int]]  # tier, key, how many


class SavedTarget(NamedTuple):
    target: TargetId
    blocks: SavedTargetBlocks
    cursor: StreamCursor
    stored_blocks: int


class SavedIndex(NamedTuple):
    secret: int
    targets: list[SavedTarget]


class UnusableSnapshot(NamedTuple):
    reason: str


class _Head(NamedTuple):
    byteorder: str
    secret: int
    targets: int


_encode = msgspec.msgpack.Encoder().encode
_head = msgspec.msgpack.Decoder(_Head).decode
_target = msgspec.msgpack.Decoder(SavedTarget).decode


# to bytes and from bytes


def to_bytes(secret: int, targets: list[SavedTarget]) -> Iterator[bytes]:
    """The snapshot in pieces, none bigger than a target: a thread that writes them holds nobody up."""
    checksum = xxh3_64(MAGIC)
    yield MAGIC
    values: Iterable[_Head | SavedTarget] = chain([_Head(sys.byteorder, secret, len(targets))], targets)
    for value in values:
        content = _encode(value)
        frame = len(content).to_bytes(LENGTH_BYTES, "little") + content
        checksum.update(frame)
        yield frame
    yield checksum.digest()


def from_bytes(raw: bytes) -> SavedIndex | UnusableSnapshot:
    if not raw.startswith(MAGIC):
        return UnusableSnapshot("it is no snapshot of this version")
    body = memoryview(raw)[:-CHECKSUM_BYTES]
    if xxh3_64_digest(body) != raw[-CHECKSUM_BYTES:]:
        return UnusableSnapshot("it is cut off or damaged")
    try:
        first, *others = _frames(body[len(MAGIC) :])
        head = _head(first)
        if head.byteorder != sys.byteorder:
            return UnusableSnapshot("it is from another kind of machine")
        return SavedIndex(head.secret, [_target(frame) for frame in others])
    except ValueError as trouble:  # msgspec's own errors, and a snapshot without a head
        return UnusableSnapshot(f"it does not read: {trouble}")


def _frames(body: memoryview) -> Iterator[memoryview]:
    while body:
        length = int.from_bytes(body[:LENGTH_BYTES], "little")
        yield body[LENGTH_BYTES : LENGTH_BYTES + length]
        body = body[LENGTH_BYTES + length :]


# to a shelf and from a shelf


def save(shelf: TargetBlocks) -> SavedTargetBlocks:
    tables = [
        _table(number, tier, names, more)
        for number, group in shelf.groups.items()
        for tier, names, more in zip(Tier, group.keys, group.extra_copies, strict=True)
        if names
    ]
    twins = [(int(tier), int(key), count) for (tier, key), count in shelf.duplicates.items()]
    runs = None if shelf.runs is None else list(shelf.runs)
    return SavedTargetBlocks(shelf.model, shelf.block_tokens, tables, runs, twins)


def _table(group: int, tier: Tier, names: Names, more: dict[Label, int]) -> SavedTable:
    unnamed = [hash_ for hash_, key in names.items() if key is None] if None in names.values() else []
    if unnamed:
        names = {hash_: key for hash_, key in names.items() if key is not None}
    keys = cast("Iterable[Key]", names.values())
    return SavedTable(group, int(tier), _raw(names), _raw(keys), _raw(unnamed), _raw(more), _raw(more.values()))


def restore(shelf: TargetBlocks, saved: SavedTargetBlocks, holders: BlockHolders) -> None:
    """Fills `shelf` (empty) as it was, and enters what it holds into `holders`."""
    shelf.block_tokens = saved.block_tokens
    shelf.duplicates.update({(Tier(tier), Key(key)): count for tier, key, count in saved.twins})
    for table in saved.tables:
        tier, group = Tier(table.tier), shelf.group(table.group)
        hashes, keys = _numbers(table.hashes), cast("list[Key]", _numbers(table.keys))
        names = group.keys[tier]
        names.update(zip(hashes, keys, strict=True))
        names.update(dict.fromkeys(_numbers(table.unnamed)))
        group.extra_copies[tier].update(zip(_numbers(table.copied), _numbers(table.copies), strict=True))
        shelf.blocks[tier] += len(holders.add(tier, keys, shelf.bit))
    for group in shelf.groups.values():
        group.keyed = len({hash_ for names in group.keys for hash_, key in names.items() if key is not None})
    shelf.runs = None if saved.runs is None else ContiguousRuns(saved.runs)


def _raw(numbers: Iterable[int]) -> bytes:
    return array("Q", numbers).tobytes()


def _numbers(raw: bytes) -> list[int]:
    return array("Q", raw).tolist()
