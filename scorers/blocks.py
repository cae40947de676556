"""Prefill work in cache blocks, for the scorers that descend from Dynamo's cost: queued and new, less what is credited.

    prefill = (uncached tokens queued at the target + this prompt - credit for what the target can reuse) / block size

Source: `raw_prefill_blocks` and `overlap_credit_blocks` of ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector.
There a router has one block size. Here fleets mix them (16 on GPUs, 128 on CPUs), and a target must not look eight
times as idle because it counts in larger blocks: one size, the smallest that any candidate told, is the unit of a
whole decision, and 16 where none told. Blocks are fractions, since the tokens are known exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from scorers.contract import Overlap, Row, View
from scorers.polled import fill_missing

UNTOLD_BLOCK_TOKENS = 16
"""vLLM's block size on GPUs, where no candidate has told its own."""


class Credit(NamedTuple):
    """What a token is worth by where a target would have it from: 1 spares its computing, 0 spares nothing."""

    gpu: float
    cpu: float
    disk: float
    shared: float

    def tokens(self, overlap: Overlap, pooled: int, gpu_share: float = 1.0) -> float:
        """Tokens that need not be computed, as Dynamo counts them. `gpu_share` scales what the GPU's part is worth.

        Recently sent counts as held by the GPU (Dynamo's predicted entries). As there, the shared part is all that the
        pool holds beyond the GPU's, so a token both in host memory and in the pool is credited for both.
        """
        gpu = overlap.expected_tokens
        worth = self.gpu * gpu_share * gpu
        if pooled > gpu:
            worth += self.shared * (pooled - gpu)
        if overlap.disk_tokens > gpu:
            cpu = overlap.cpu_tokens if overlap.cpu_tokens > gpu else gpu
            worth += self.cpu * (cpu - gpu) + self.disk * (overlap.disk_tokens - cpu)
        return worth


def fill_credits(rows: Sequence[Row], credit: Callable[[Row, Overlap], float]) -> list[float]:
    """The credit of every row; where the overlap is unknown, the mean of the others (0 if none is known)."""
    return fill_missing([None if row.overlap is None else credit(row, row.overlap) for row in rows])


def block_tokens(rows: Sequence[Row]) -> int:
    """Tokens per block, for all rows of one decision alike."""
    return min([row.block_tokens for row in rows if row.block_tokens], default=UNTOLD_BLOCK_TOKENS)


def pooled_tokens(view: View) -> int:
    """An unknown pool holds nothing."""
    return 0 if view.pool is None else view.pool.tokens


def whole_tokens(view: View) -> int:
    """The prompt's length; where it is unknown, the longest run that anybody holds stands in for it."""
    if view.prompt_tokens is not None:
        return view.prompt_tokens
    runs = [max(o.expected_tokens, o.disk_tokens) for o in (row.overlap for row in view.rows) if o is not None]
    return max([pooled_tokens(view), *runs])
