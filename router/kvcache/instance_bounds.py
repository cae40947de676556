"""Bounds the share of the index that one instance may fill with its events, so that no instance takes the others'
room, and refuses events that the index cannot represent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Literal

from router.kvcache.event_sequencer import TargetCacheState
from router.kvcache.events import TargetId
from router.kvcache.index import BlockIndex

MEASURE_BLOCKS = 4096  # applied between two measurements of a target's entries
INSTANCE_BYTES = 512 * 1024 * 1024  # as `index.instance_bytes`
CAPACITY_FACTOR = 16  # limit on blocks, in GPU caches: host tiers are up to ten times as large
LEAST_BLOCKS = 65_536  # a cache of unknown or tiny size may hold so many
MAX_BLOCK_SIZES = 4  # of one target: each costs every prompt of the model another chain of keys

IndexLimit = Literal["blocks", "block_size", "groups"]


class InstanceBounds:
    """Memory filled by the targets in the caller's `states`. `limit_bytes` limits the entries of one instance."""

    def __init__(self, index: BlockIndex, states: Mapping[TargetId, TargetCacheState], limit_bytes: int) -> None:
        self._index = index
        self._states = states
        self._limit_bytes = limit_bytes
        self._instance_bytes: Counter[str] = Counter()
        self._over: dict[TargetId, tuple[IndexLimit, str]] = {}

    def over(self, target: TargetId) -> tuple[IndexLimit, str] | None:
        """Return which bound the events of `target` exceeded since it joined, and how; None: no bound."""
        return self._over.get(target)

    def count(self, target: TargetId, state: TargetCacheState, blocks: int) -> None:
        """Count applied blocks, and measure the target after every `MEASURE_BLOCKS`."""
        state.unmeasured_blocks += blocks
        if state.unmeasured_blocks >= MEASURE_BLOCKS:
            self._measure(target, state)

    def add_block_size(self, target: TargetId, state: TargetCacheState, size: int) -> None:
        """Note that an event of `target` had blocks of `size` tokens."""
        state.block_sizes.add(size)
        if len(state.block_sizes) > MAX_BLOCK_SIZES:
            self._over[target] = "block_size", f"KV events with more than {MAX_BLOCK_SIZES} block sizes"

    def check_skipped(self, target: TargetId, skipped: Mapping[str, int]) -> None:
        """Note events of which nothing is indexed. `skipped` counts them by reason."""
        if "chunked" in skipped:  # full attention alone would promise more than the engine re-uses
            self._over[target] = "groups", "KV events of chunked local attention: what is re-used of it is unknown"

    def clear(self, target: TargetId) -> None:
        """Note that `target` holds nothing."""
        self._set_bytes(target, 0)

    def _measure(self, target: TargetId, state: TargetCacheState) -> None:
        """Check the memory of the target and of its instance against their bounds."""
        state.unmeasured_blocks = 0
        size = self._index.size(target)
        total = self._set_bytes(target, size.bytes)
        if total > self._limit_bytes:
            detail = f"its KV events take more than {self._limit_bytes:,} bytes (index.instance_bytes)"
            self._over[target] = "blocks", detail
        elif state.capacity_blocks is not None:
            most = max(LEAST_BLOCKS, CAPACITY_FACTOR * state.capacity_blocks)
            if size.blocks > most:
                self._over[target] = "blocks", f"KV events of more than {most:,} blocks, {CAPACITY_FACTOR} GPU caches"

    def _set_bytes(self, target: TargetId, size: int) -> int:
        """Note the bytes of the target's entries. Return the bytes of its instance's entries."""
        instance = target.rpartition("/")[0]
        state = self._states.get(target)
        if state is not None:
            self._instance_bytes[instance] += size - state.bytes
            state.bytes = size
        if not size:
            self._over.pop(target, None)
            if self._instance_bytes[instance] <= 0:
                del self._instance_bytes[instance]
        return self._instance_bytes[instance]
