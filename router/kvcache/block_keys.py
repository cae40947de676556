"""Chained keys of cache blocks: each key hashes the key before it and the block's token ids.

A key means "these tokens after exactly those", so equal keys mean equal prefixes, whichever engine holds them and
however that engine hashes (`protocol.md` 3.5). Everything else that separates caches is mixed in where the engine
mixes it in: model, adapter and salt in the root, media ids in the block they begin in.

The secret is the hash's seed at every step, not only in the root: xxh3 sums the products of 16-byte pieces, so with
a known seed two blocks could be made to collide from outside without knowing what they follow.

Keys have 60 bits: CPython stores such an int in 32 bytes, one of 64 bits in 48, and the index holds millions. Among
ten million blocks, the chance that any two share a key is 1 in 23,000; with a secret seed, collisions cannot be
searched for.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from typing import cast

from mypy_extensions import mypyc_attr
from xxhash import xxh3_64_intdigest as digest

from router.kvcache.bulk import LEAST_CHAINED_BYTES, MOST_CHAINED_BYTES, SHORT, chain_keys
from router.kvcache.events import Key

_u64 = struct.Struct("<Q").pack


@mypyc_attr(allow_interpreted_subclasses=True)
class Keyring:
    """Computes keys. Two keyrings with the same 64-bit secret compute the same keys."""

    def __init__(self, secret: int) -> None:
        self._secret = secret & 0xFFFF_FFFF_FFFF_FFFF

    def root(self, model: str, adapter: str | None, salt: str | None) -> Key:
        """Return the parent key of a chain's first block. `None` and the empty string give different roots."""
        names = b"".join(_length_prefixed(name) for name in (model, adapter, salt))
        return Key(digest(names, self._secret) & SHORT)

    def chain(
        self,
        parent: Key,
        token_ids: array[int] | Sequence[int],
        block_tokens: int,
        extras: tuple[bytes, ...] | None = None,
    ) -> list[Key]:
        """Return the keys of the full blocks of `token_ids` (each in 0..2**32-1) that follow `parent`.

        xxh3_64 over the parent's 8 bytes, the block's ids as u32 (native byte order) and its extras: 0.25 us per
        block of 16, in C 0.05.
        """
        ids = token_ids if isinstance(token_ids, array) and token_ids.typecode == "I" else array("I", token_ids)
        width, secret = 4 * block_tokens, self._secret
        if extras is None and LEAST_CHAINED_BYTES <= width <= MOST_CHAINED_BYTES:
            return cast("list[Key]", chain_keys(parent, ids, width, secret))
        raw = memoryview(ids).cast("B")
        keys: list[int] = []
        key: int = parent
        for start in range(0, len(raw) - width + 1, width):
            block = _u64(key) + raw[start : start + width]
            if extras is not None and (extra := extras[len(keys)]):
                block += extra
            key = digest(block, secret) & SHORT
            keys.append(key)
        return cast("list[Key]", keys)


def _length_prefixed(name: str | None) -> bytes:
    if name is None:
        return b"-"
    raw = name.encode("utf-8", "surrogatepass")  # JSON can carry lone surrogates
    return b"%d:%b" % (len(raw), raw)
