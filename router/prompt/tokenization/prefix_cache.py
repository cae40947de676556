"""Caches segments of prompts: ids and block keys, by all the text up to the segment's end.

    root | segment 1 | segment 2 | segment 3      a prompt's next turn begins with the same bytes: its first segments
           ^name 1     ^name 2     ^name 3        are found by name, and only what follows them is tokenised

A *name* is a keyed 128-bit BLAKE2b over the root (model, adapter, salt, everything else that changes the ids) and
every byte of the prompt up to the segment's end. Ids go to engines, and a collision would answer another user's
prompt, so clients must not be able to construct one; by accident it takes 2**64 segments. Different salts never
share a name, so timing tells one tenant nothing about another's prompts.

The least recently used segment is evicted. A prompt is touched from its end to its beginning, so a segment is
always evicted before those in front of it: the cached part of a prompt is a leading run, and shared prefixes stay.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import cast

import msgspec

from router.kvcache.block_keys import Keyring
from router.kvcache.events import Key
from router.kvcache.memory_budget import MemoryBudget

Name = bytes

# CPython 3.11's overhead beside the contents: the slot in the ordered dict with its share of empty ones, the name, the
# objects and their headers. A test compares the sum with what the interpreter really allocates.
SEGMENT_BYTES = 540
KEYS_BYTES = 112  # one more array of keys, in the segment's dict


@dataclass(slots=True, eq=False)
class CachedSegment:
    """A segment of a prompt, identified by its own text and all text in front of it."""

    ids: array[int] = field(default_factory=lambda: array("I"))  # typecode "I"
    json_ids: bytes = b""  # `ids` as JSON numbers with commas; empty if not needed
    keys: dict[int, array[int]] = field(default_factory=dict)  # by block size: of the blocks that end in this segment

    @property
    def memory_bytes(self) -> int:
        """Estimate of the segment's memory in the cache."""
        keys = sum(KEYS_BYTES + 8 * len(keys) for keys in self.keys.values())
        return SEGMENT_BYTES + 4 * len(self.ids) + len(self.json_ids) + keys


def make_segment(ids: list[int], *, spell: bool) -> CachedSegment:
    """Return the segment for these ids; `spell`: include their JSON text."""
    return CachedSegment(array("I", ids), msgspec.json.encode(ids)[1:-1] if spell else b"")


@dataclass(slots=True, eq=False)
class _Entry:
    segment: CachedSegment
    bytes: int
    block_sizes: int  # for which the segment had keys when `bytes` was estimated


class PrefixCache:
    """The cache. Only the event loop's thread may use it, except for `name_segments`, which any thread may call."""

    def __init__(self, budget: MemoryBudget, secret: bytes) -> None:
        """`secret`: up to 64 secret bytes."""
        self._budget = budget
        self._secret = secret
        self._entries: OrderedDict[Name, _Entry] = OrderedDict()
        budget.set_evictor(self._evict_oldest)

    def __len__(self) -> int:
        """Number of cached segments."""
        return len(self._entries)

    def name_segments(self, root: bytes, segments: Sequence[bytes]) -> list[Name]:
        """Return the name of each segment, computed over all segments before it as well."""
        text = self.begin_hash(root)
        names = []
        for segment in segments:
            text.update(segment)
            names.append(text.digest())
        return names

    def begin_hash(self, root: bytes) -> blake2b:
        """Return the hash whose digest after each segment is its name. No root may be a prefix of another root."""
        return blake2b(root, digest_size=16, key=self._secret)

    def find(self, names: Sequence[Name]) -> list[CachedSegment]:
        """Return the leading segments that are cached."""
        found = []
        for name in names:
            if (entry := self._entries.get(name)) is None:
                break
            found.append(entry.segment)
        return found

    def store(self, names: Sequence[Name], segments: Sequence[CachedSegment]) -> None:
        """Store all segments of a prompt, cached and new ones, and mark them as used now."""
        for name, segment in zip(reversed(names), reversed(segments), strict=True):
            self._put(name, segment)

    def _put(self, name: Name, segment: CachedSegment) -> None:
        if (entry := self._entries.get(name)) is None:
            size = segment.memory_bytes
            self._entries[name] = _Entry(segment, size, len(segment.keys))
            self._budget.take(size)
            return
        self._entries.move_to_end(name)
        if segment is entry.segment and len(segment.keys) > entry.block_sizes:  # keys of another size were added
            size, more = segment.memory_bytes, segment.memory_bytes - entry.bytes
            entry.bytes, entry.block_sizes = size, len(segment.keys)
            self._budget.take(more)

    def _evict_oldest(self) -> bool:
        if not self._entries:
            return False
        _, entry = self._entries.popitem(last=False)
        self._budget.give(entry.bytes)
        return True


class Prefix:
    """A prompt as far as it is tokenised: ids, their JSON text and block keys, growing by one segment at a time.

    Cached and new segments are added in the same way: missing keys are chained after the present ones and stored in
    the segment, so the next turn only copies.
    """

    def __init__(self, keyring: Keyring, root: Key, block_sizes: Iterable[int]) -> None:
        """`root` is the parent key of the first block."""
        self.ids = array("I")
        self.json_ids: list[bytes] = []
        self._keyring = keyring
        self._root = root
        self._keys: dict[int, array[int]] = {size: array("Q") for size in block_sizes}

    @property
    def keys(self) -> dict[int, Sequence[Key]]:
        """Keys of the full blocks by block size."""
        return cast("dict[int, Sequence[Key]]", self._keys)

    def add_cached(self, segments: Sequence[CachedSegment]) -> None:
        """Append segments; all at once if they have their keys, which takes a fifth of the time."""
        for size in self._keys:
            for segment in segments:
                if size not in segment.keys:
                    for each in segments:
                        self.add(each)
                    return
        self.ids.frombytes(b"".join([segment.ids for segment in segments]))
        self.json_ids += [segment.json_ids for segment in segments if segment.json_ids]
        for size, keys in self._keys.items():
            keys.frombytes(b"".join([segment.keys[size] for segment in segments]))

    def add(self, segment: CachedSegment) -> None:
        """Append a segment, and store the segment's block keys in it."""
        self.ids.extend(segment.ids)
        if segment.json_ids:
            self.json_ids.append(segment.json_ids)
        for size, keys in self._keys.items():
            if (segment_keys := segment.keys.get(size)) is None:
                segment_keys = segment.keys[size] = self._chain(size)
            keys.extend(segment_keys)

    def _chain(self, size: int) -> array[int]:
        """Return the keys of the full blocks that have none yet."""
        keys = self._keys[size]
        parent = Key(keys[-1]) if keys else self._root
        return array("Q", self._keyring.chain(parent, self.ids[len(keys) * size :], size))
