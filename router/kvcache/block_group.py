"""The blocks of one target in one KV cache group: which hashes it holds, in which tier, and under which keys."""

from __future__ import annotations

from typing import TypeVar

from router.kvcache.bulk import KeyTable
from router.kvcache.events import Key, Tier

Label = int  # 60 bits of an engine's hash

T = TypeVar("T")


class BlockGroup:
    """One KV cache group."""

    __slots__ = ("block_tokens", "extra_copies", "keyed", "keyless", "keys", "recalled")

    def __init__(self) -> None:
        self.block_tokens: int | None = None  # block size on the GPU; a slower tier may have another
        self.keys = (KeyTable(), KeyTable(), KeyTable())  # by tier
        self.extra_copies: tuple[dict[Label, int], ...] = ({}, {}, {})  # by tier: copies beyond the first, never 0
        self.keyed = 0  # hashes with a key, each once, whatever their tiers
        self.keyless = 0  # hashes without a key, each once
        self.recalled: set[Label] = set()  # hashes on the GPU known by evidence other than an event

    def cached(self, hash_: Label) -> bool:
        gpu, cpu, disk = self.keys
        return hash_ in gpu or hash_ in cpu or hash_ in disk

    def key(self, hash_: Label) -> Key | None:
        for table in self.keys:
            if (key := table.get(hash_)) is not None:
                return Key(key)
        return None

    def other_tiers(self, tier: Tier) -> list[KeyTable]:
        """Return the tables of all tiers except `tier` that hold any block."""
        gpu, cpu, disk = self.keys
        if not cpu and not disk and tier is Tier.GPU:
            return []
        return [table for other, table in enumerate((gpu, cpu, disk)) if table and other != tier]

    def is_new_elsewhere(self, hashes: list[Label], tier: Tier) -> bool:
        """Return whether no tier except `tier` holds any of `hashes`."""
        return all(table.is_new(hashes) for table in self.other_tiers(tier))


def decrement(counts: dict[T, int], what: T) -> bool:
    """Take one off the count of `what`. Return False if there was none."""
    count = counts.get(what, 0)
    if count > 1:
        counts[what] = count - 1
    elif count:
        del counts[what]
    return count > 0
