"""What is remembered of prompts: per piece (pieces.py), by all the text up to its end, its ids and its block keys.

    root | piece 1 | piece 2 | piece 3        a prompt's next turn begins with the same bytes: its first pieces are
         ^name 1   ^name 2   ^name 3          found by name, and only what follows them is tokenised

A *name* is a keyed 128-bit BLAKE2b over the root (model, adapter, salt, what else changes the ids) and every byte of
the prompt up to the piece's end. Ids go to engines, and a collision would answer somebody else's prompt: so nobody
outside may be able to make one, and by accident it takes 2**64 pieces. Different salts never share a name, so time
does not tell one tenant of another's prompts.

Forgotten is what was not used for longest. A prompt is touched from its end to its beginning, so a piece is always
forgotten before those in front of it: what is known of a prompt is a leading run, and what many prompts share stays.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from router.kvcache.memory_budget import MemoryBudget

Name = bytes

# What CPython 3.11 takes beside the contents: the slot in the ordered dict with its share of empty ones, the name, the
# objects and their headers. A test holds the sum to what the interpreter really allocates.
PIECE_BYTES = 540
KEYS_BYTES = 112  # one more array of keys, in the piece's dict


@dataclass(slots=True, eq=False)
class CachedSegment:
    """A piece of a prompt, known by all that is in front of it."""

    ids: array[int] = field(default_factory=lambda: array("I"))  # typecode "I"
    json_ids: bytes = b""  # the same as JSON numbers with commas between them, where somebody may want them so
    keys: dict[int, array[int]] = field(default_factory=dict)  # by block size: of the blocks that end in this piece

    @property
    def memory_bytes(self) -> int:
        """An estimate of the memory it takes in the memo."""
        keys = sum(KEYS_BYTES + 8 * len(keys) for keys in self.keys.values())
        return PIECE_BYTES + 4 * len(self.ids) + len(self.json_ids) + keys


def piece_of(ids: list[int], *, spell: bool) -> CachedSegment:
    return CachedSegment(array("I", ids), msgspec.json.encode(ids)[1:-1] if spell else b"")


@dataclass(slots=True, eq=False)
class _Kept:
    piece: CachedSegment
    bytes: int


class PrefixCache:
    """Belongs to the event loop's thread, but for `names`, which any thread may ask."""

    def __init__(self, budget: MemoryBudget, secret: bytes) -> None:
        """`secret`: up to 64 bytes that nobody outside knows."""
        self._budget = budget
        self._secret = secret
        self._kept: OrderedDict[Name, _Kept] = OrderedDict()
        budget.set_evictor(self._forget_oldest)

    def __len__(self) -> int:
        """Pieces remembered."""
        return len(self._kept)

    def name_segments(self, root: bytes, pieces: Sequence[bytes]) -> list[Name]:
        """The name of each piece behind all before it. No root may be the beginning of another one."""
        text = blake2b(root, digest_size=16, key=self._secret)
        names = []
        for piece in pieces:
            text.update(piece)
            names.append(text.digest())
        return names

    def find(self, names: Sequence[Name]) -> list[CachedSegment]:
        """The leading pieces that are remembered."""
        found = []
        for name in names:
            if (kept := self._kept.get(name)) is None:
                break
            found.append(kept.piece)
        return found

    def store(self, names: Sequence[Name], pieces: Sequence[CachedSegment]) -> None:
        """All of a prompt, found and new: it was used now."""
        for name, piece in zip(reversed(names), reversed(pieces), strict=True):
            self._put(name, piece)

    def _put(self, name: Name, piece: CachedSegment) -> None:
        size = piece.memory_bytes
        if (kept := self._kept.get(name)) is None:
            self._kept[name] = _Kept(piece, size)
            self._budget.take(size)
            return
        self._kept.move_to_end(name)
        if piece is kept.piece and size > kept.bytes:  # keys for another block size were added
            kept.bytes, more = size, size - kept.bytes
            self._budget.take(more)

    def _forget_oldest(self) -> bool:
        if not self._kept:
            return False
        _, kept = self._kept.popitem(last=False)
        self._budget.give(kept.bytes)
        return True
