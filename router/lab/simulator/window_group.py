"""A group of layers with a sliding window in a simulated engine: which blocks a request has there, and which are kept.

A window reaches back to the last `need` blocks. A request gives up the blocks before them as it goes on, and only the
last `need` before a few places stay cached: where its prompt ends, and where it parted from what full attention held.
Source of the rules: vLLM v1/core/single_type_kv_cache_manager.py (0.32, retention interval 0).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from router.kvcache.events import EngineHash, TailsStored
from router.lab.simulator.block_pool import BlockPool

GIVEN_UP = -1  # in a request's list, in place of a block that it no longer has


class WindowGroup:
    """Group `number`, with a window of `window` tokens and blocks of `block_tokens`."""

    def __init__(self, number: int, window: int, block_tokens: int) -> None:
        self._number = number
        self._window = window
        self._size = block_tokens
        self._need = max(1, -(-(window - 1) // block_tokens))

    def count_reused(self, pool: BlockPool, labels: Sequence[EngineHash], limit: int) -> int:
        """Return how many leading blocks of a prompt, at most `limit`, can be re-used."""
        run = 0
        for place in range(limit - 1, -1, -1):
            run = run + 1 if pool.find(labels[place], self._number) is not None else 0
            if run == self._need:
                return place + run
        return run

    def list_cached(self, pool: BlockPool, labels: Sequence[EngineHash], reused: int) -> list[int]:
        """Return the blocks of a request that re-uses `reused` blocks."""
        given_up = self._count_given_up(reused * self._size)
        found = [pool.find(label, self._number) for label in labels[given_up:reused]]
        return [GIVEN_UP] * given_up + [block for block in found if block is not None]

    def give_up(self, pool: BlockPool, blocks: list[int], computed: int) -> None:
        """Release the blocks that a request with `computed` tokens no longer needs."""
        end = min(self._count_given_up(computed), len(blocks))
        begin = end
        while begin and blocks[begin - 1] != GIVEN_UP:
            begin -= 1
        pool.release(blocks[begin:end])
        blocks[begin:end] = [GIVEN_UP] * (end - begin)

    def _count_given_up(self, computed: int) -> int:
        return max(0, computed - self._window + 1) // self._size

    def announce(
        self, pool: BlockPool, blocks: Sequence[int], labels: Sequence[EngineHash], first: int, ends: Collection[int]
    ) -> None:
        """Announce the blocks from `first` on that are kept, of all `labels`: the last before each of `ends`."""
        kept = [
            place
            for place in range(first, len(labels))
            if blocks[place] != GIVEN_UP and any(end - self._need <= place < end for end in ends)
        ]
        hashes = [labels[place] for place in kept]
        pool.label([blocks[place] for place in kept], hashes, self._number)
        whole = not first and len(kept) == len(labels)
        pool.events.append(TailsStored(hashes, self._number, self._size, self._need, leading=True, from_start=whole))
