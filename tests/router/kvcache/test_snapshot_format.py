"""There and back again, and everything a file can be that is not a snapshot."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_digest

from router.kvcache.block_keys import Keyring
from router.kvcache.event_sequencer import StreamCursor
from router.kvcache.events import BlocksRemoved, BlocksStored, EngineHash, Key, TargetId, Tier
from router.kvcache.index import BlockIndex
from router.kvcache.snapshot_format import MAGIC, SavedIndex, SavedTarget, UnusableSnapshot, from_bytes, to_bytes
from tests.router.kvcache.house import in_order

RING = Keyring(5)
A, B = TargetId("a/0"), TargetId("b/1")
SECRET = (1 << 64) - 3


def stored(*hashes: int, parent: int | None = None, tier: Tier = Tier.GPU, group: int = 0) -> BlocksStored:
    names = [EngineHash(hash_) for hash_ in hashes]
    before = None if parent is None else EngineHash(parent)
    return BlocksStored(names, before, list(hashes), 1, tier, group, None, None, None)


def a_busy_index() -> BlockIndex:
    index = BlockIndex(RING)
    for target in (A, B):
        index.join(target, "m")
        index.apply(target, stored(1, 2, 3))
    index.apply(A, stored(2, parent=1))  # another copy
    index.apply(A, stored(1, 2, tier=Tier.CPU))
    index.apply(A, stored(1, 2, group=1))  # the same keys once more
    index.apply(A, stored(9, parent=8))  # an orphan
    return index


def target(index: BlockIndex, name: TargetId) -> SavedTarget:
    shelf = index.snapshot(name)
    assert shelf is not None
    return SavedTarget(name, shelf, StreamCursor(7, 1e9 + 0.25, True), 12)


def a_snapshot() -> bytes:
    index = a_busy_index()
    return b"".join(to_bytes(SECRET, [target(index, A), target(index, B)]))


def prompt(*tokens: int) -> list[Key]:
    return RING.chain(RING.root("m", None, None), list(tokens), 1)


def test_what_was_saved_comes_back_as_it_was() -> None:
    saved = from_bytes(a_snapshot())
    assert isinstance(saved, SavedIndex)
    assert saved.secret == SECRET
    assert [(t.target, t.cursor, t.stored_blocks) for t in saved.targets] == [
        (A, StreamCursor(7, 1e9 + 0.25, True), 12),
        (B, StreamCursor(7, 1e9 + 0.25, True), 12),
    ]
    index, before = BlockIndex(RING), a_busy_index()
    for one in saved.targets:
        index.restore(one.target, one.blocks)
        assert index.join_restored(one.target, "m")
    for name in (A, B):
        assert index.match(prompt(1, 2, 3, 4), [name]) == before.match(prompt(1, 2, 3, 4), [name])
        assert index.stats(name).blocks == before.stats(name).blocks
        assert index.held_blocks(name) == before.held_blocks(name) == 3
        assert index.block_tokens(name) == 1
        assert in_order(index.snapshot(name)) == in_order(before.snapshot(name))
    assert [index.stats(name).contiguous for name in (A, B)] == [False, True]


def test_copies_twins_and_names_go_on_being_counted() -> None:
    index = BlockIndex(RING)
    saved = from_bytes(a_snapshot())
    assert isinstance(saved, SavedIndex)
    index.restore(A, saved.targets[0].blocks)
    index.join_restored(A, "m")
    index.apply(A, BlocksRemoved([EngineHash(2)], Tier.GPU, 0))
    index.apply(A, BlocksRemoved([EngineHash(2)], Tier.GPU, 0))
    assert index.match(prompt(1, 2, 3), [A])[A].gpu == 3, "the other group still holds it"
    index.apply(A, BlocksRemoved([EngineHash(2)], Tier.GPU, 1))
    assert index.match(prompt(1, 2, 3), [A])[A] == (1, 3, 3)


def test_until_its_target_joins_nothing_of_it_is_seen() -> None:
    index, saved = BlockIndex(RING), from_bytes(a_snapshot())
    assert isinstance(saved, SavedIndex)
    index.restore(B, saved.targets[1].blocks)
    assert index.match(prompt(1, 2), [B]) == {}
    assert not index.join_restored(B, "another model")
    assert not index.join_restored(A, "m")
    index.leave(B)  # no harm: it has not joined
    assert index.join_restored(B, "m")
    assert index.match(prompt(1, 2), [B])[B].gpu == 2


@pytest.mark.parametrize("how", ["joins", "given up"])
def test_what_nobody_takes_up_is_cleaned_away(how: str) -> None:
    index, saved = BlockIndex(RING), from_bytes(a_snapshot())
    assert isinstance(saved, SavedIndex)
    index.restore(B, saved.targets[1].blocks)
    index.join(B, "m") if how == "joins" else index.discard_restored(B)
    index.join(A, "m")
    assert not index.join_restored(B, "m")
    for number in range(100, 103):
        index.apply(A, stored(number))
    assert len(index._holders.tables[Tier.GPU]) == 3
    assert index._holders.blocks == [3, 0, 0]


def test_a_router_that_knows_nothing_saves_nothing() -> None:
    assert from_bytes(b"".join(to_bytes(3, []))) == SavedIndex(3, [])


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "not a snapshot"),
        (b"warmroute index 0\nxxxxxxxxxxxxx", "not a snapshot of this version"),
        (MAGIC, "truncated"),
        (a_snapshot()[:-1], "truncated"),
        (a_snapshot() + b"x", "truncated"),
        (a_snapshot().replace(b"a/0", b"a/9"), "damaged"),
    ],
)
def test_what_is_no_snapshot_is_unusable_and_says_why(raw: bytes, reason: str) -> None:
    found = from_bytes(raw)
    assert isinstance(found, UnusableSnapshot)
    assert reason in found.reason


def test_one_of_another_byte_order_is_unusable(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = a_snapshot()
    monkeypatch.setattr(sys, "byteorder", "big" if sys.byteorder == "little" else "little")
    assert from_bytes(raw) == UnusableSnapshot("from a machine with another byte order")


@given(st.binary(max_size=200))
def test_no_bytes_behind_a_right_checksum_are_more_than_unusable(noise: bytes) -> None:
    body = MAGIC + noise
    assert isinstance(from_bytes(body + xxh3_64_digest(body)), UnusableSnapshot | SavedIndex)


@given(st.integers(0, len(a_snapshot()) - 1), st.integers(1, 255))
def test_one_wrong_byte_is_noticed(position: int, change: int) -> None:
    raw = bytearray(a_snapshot())
    raw[position] ^= change
    assert isinstance(from_bytes(bytes(raw)), UnusableSnapshot)
