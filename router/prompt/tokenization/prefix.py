"""A prompt as far as it is known: ids, their spelling and block keys, growing by one piece at a time.

Whether a piece is remembered or was tokenised just now, it is added in the same way: keys that it does not have yet
are chained behind those already here and stay with it, so the next turn only copies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import cast

from router.kvcache.block_keys import Keyring
from router.kvcache.events import Key
from router.prompt.tokenization.prefix_cache import CachedSegment


class Prefix:
    def __init__(self, keyring: Keyring, root: Key, block_sizes: Iterable[int]) -> None:
        """`root`: what the first block follows."""
        self.ids = array("I")
        self.json_ids: list[bytes] = []
        self._keyring = keyring
        self._root = root
        self._keys: dict[int, array[int]] = {size: array("Q") for size in block_sizes}

    @property
    def keys(self) -> dict[int, Sequence[Key]]:
        return cast("dict[int, Sequence[Key]]", self._keys)

    def add(self, piece: CachedSegment) -> None:
        self.ids.extend(piece.ids)
        if piece.json_ids:
            self.json_ids.append(piece.json_ids)
        for size, keys in self._keys.items():
            if (known := piece.keys.get(size)) is None:
                known = piece.keys[size] = self._chained(size)
            keys.extend(known)

    def _chained(self, size: int) -> array[int]:
        """The keys of the full blocks that have none yet."""
        keys = self._keys[size]
        parent = Key(keys[-1]) if keys else self._root
        return array("Q", self._keyring.chain(parent, self.ids[len(keys) * size :], size))
