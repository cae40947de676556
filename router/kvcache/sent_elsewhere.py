"""Blocks of prompts that other workers and replicas sent to targets, before any event has reported them.

These blocks count like those of this router's own prompts, except for their end: no peer reports that such a
request has failed, so they count for `index.expected_ttl_s` after they become known, or until an event announces
them.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import cast

from router.clock import Clock
from router.kvcache.events import Key, TargetId
from router.kvcache.index import BlockIndex
from router.kvcache.speculative import ApproximateBlocks, SpeculativeBlocks


class SentElsewhere:
    """Adds to the blocks expected of targets (`speculative`), and to the blocks sent to targets without events."""

    def __init__(
        self, index: BlockIndex, speculative: SpeculativeBlocks, approximate: ApproximateBlocks, clock: Clock
    ) -> None:
        self._index = index
        self._speculative = speculative
        self._approximate = approximate
        self._clock = clock

    def expect(self, target: TargetId, keys: Sequence[Key]) -> None:
        """Expect `target` to hold these blocks soon, unless its events have already announced the last one."""
        if keys and self._index.has_joined(target) and not self._index.holds(target, keys[-1]):
            now = self._clock.now()
            self._speculative.on_first_byte(self._speculative.add(target, keys, now), now)

    def add_computed(self, target: TargetId, keys: Sequence[Key]) -> None:
        """Note that `target`, whose events cannot be trusted, computed these blocks, the first ones of a prompt."""
        if self._index.has_joined(target):
            self._approximate.add(target, keys, self._clock.now())


def pack_keys(keys: Sequence[Key]) -> bytes:
    """Return keys as bytes, eight each."""
    return array("Q", keys).tobytes()


def unpack_keys(packed: bytes) -> Sequence[Key]:
    """Return the keys that `pack_keys` packed; empty if `packed` cannot be its result."""
    return cast("Sequence[Key]", array("Q", packed)) if len(packed) % 8 == 0 else ()
