"""A prompt's prefix: ids, their JSON text and block keys, growing by one segment at a time.

Cached and newly tokenised segments are added in the same way: keys that a segment does not have yet are chained behind
the present ones and stored in it, so the next turn only copies.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import cast

from router.kvcache.block_keys import Keyring
from router.kvcache.events import Key
from router.prompt.tokenization.prefix_cache import CachedSegment


class Prefix:
    """The part of a prompt that is tokenised so far."""

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

    def add(self, segment: CachedSegment) -> None:
        """Append a segment, and store its block keys in it."""
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
