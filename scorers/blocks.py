"""Prefill work in cache blocks, for the scorers derived from Dynamo's cost: queued work plus new work, less
credits.

prefill = (uncached tokens queued at the target + this prompt - credit for what the target can reuse) / block size

Source: `raw_prefill_blocks` and `overlap_credit_blocks` of ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector.
Dynamo has one block size per router. Fleets here mix block sizes (16 on GPUs, 128 on CPUs), and a target must not
look eight times as idle because it counts in larger blocks. So a whole decision uses one size as its unit: the
smallest that any candidate reports, or 16 if none reports any. Blocks are fractions, since the tokens are known
exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from scorers.contract import Load, Overlap, Row, View
from scorers.polled import fill_missing

DEFAULT_BLOCK_TOKENS = 16  # vLLM's block size on GPUs, used if no candidate has reported its own


class CreditParameters(Protocol):
    """The parameters of Dynamo's cost that make a `Credit`."""

    @property
    def overlap_score_credit(self) -> float: ...
    @property
    def host_cache_hit_weight(self) -> float: ...
    @property
    def disk_cache_hit_weight(self) -> float: ...
    @property
    def shared_cache_multiplier(self) -> float: ...


class Credit:
    """Worth of a cached token by its tier: at 1 the token saves its whole computation, at 0 nothing."""

    __slots__ = ("cpu", "disk", "gpu", "shared")

    def __init__(self, gpu: float, cpu: float, disk: float, shared: float) -> None:
        self.gpu = gpu
        self.cpu = cpu
        self.disk = disk
        self.shared = shared

    @classmethod
    def of(cls, scorer: CreditParameters) -> Credit:
        """Return the credit with the weights of a scorer's parameters."""
        return cls(
            scorer.overlap_score_credit,
            scorer.host_cache_hit_weight,
            scorer.disk_cache_hit_weight,
            scorer.shared_cache_multiplier,
        )

    def of_rows(self, view: View) -> list[float]:
        """Return the tokens credited to every row; where the overlap is unknown, the mean of the others."""
        pooled = pooled_tokens(view)
        return fill_missing(
            [None if (overlap := row.overlap) is None else self.tokens(overlap, pooled) for row in view.rows]
        )

    def tokens(self, overlap: Overlap, pooled: int, gpu_share: float = 1.0) -> float:
        """Return the tokens that need not be computed, as Dynamo counts them. `gpu_share` scales the worth of the
        GPU's part.

        Recently sent blocks count as held by the GPU (Dynamo's predicted entries). As in Dynamo, the shared part is
        all that the pool holds beyond the GPU's, so a token both in host memory and in the pool is credited for
        both.
        """
        gpu = sent_tokens(overlap)
        worth = self.gpu * gpu_share * gpu
        if pooled > gpu:
            worth += self.shared * (pooled - gpu)
        if overlap.disk_tokens > gpu:
            cpu = overlap.cpu_tokens if overlap.cpu_tokens > gpu else gpu
            worth += self.cpu * (cpu - gpu) + self.disk * (overlap.disk_tokens - cpu)
        return worth


class TierWeights(NamedTuple):
    """Worth of a cached token by where it is held. A token held in several places counts once, for the first in
    this order.
    """

    gpu: float
    host: float
    pool: float
    disk: float


def weigh_tiers(rows: Sequence[Row], weights: TierWeights, pooled: int, expected: bool = True) -> list[float | None]:
    """Return the worth of the prompt's tokens at each row, with `pooled` of them in the shared pool; None where the
    overlap is unknown. With `expected`, blocks just sent to a target count as held by its GPU.
    """
    on_gpu, in_host, in_pool, on_disk = weights
    worths: list[float | None] = []
    for row in rows:
        overlap = row.overlap
        if overlap is None:
            worths.append(None)
            continue
        gpu, disk = sent_tokens(overlap) if expected else overlap.gpu_tokens, overlap.disk_tokens
        worth = on_gpu * gpu
        if disk > gpu or pooled > gpu:
            host = max(overlap.cpu_tokens, gpu)
            pool = max(pooled, host)
            worth = worth + in_host * (host - gpu) + in_pool * (pool - host) + on_disk * (max(disk, pool) - pool)
        worths.append(worth)
    return worths


def fill_credits(rows: Sequence[Row], credit: Callable[[Row, Overlap], float]) -> list[float]:
    """Return the credit of every row; where the overlap is unknown, the mean of the others (0 if none is known)."""
    return fill_missing([None if row.overlap is None else credit(row, row.overlap) for row in rows])


def fill_held(rows: Sequence[Row]) -> list[float]:
    """Return the tokens on every row's GPU or just sent there; where unknown, the mean of the others (0 if none is
    known).
    """
    return fill_missing([None if (overlap := row.overlap) is None else sent_tokens(overlap) for row in rows])


def sent_tokens(overlap: Overlap) -> int:
    """Return the tokens on the GPU or just sent there, whether or not it can keep them."""
    return max(overlap.gpu_tokens, overlap.expected_tokens)


def tier_tokens(overlap: Overlap) -> int:
    """Return the tokens in all tiers of a target that has others than the GPU's, else those that its GPU keeps."""
    return overlap.disk_tokens if overlap.disk_tokens > overlap.gpu_tokens else kept_tokens(overlap)


def kept_tokens(overlap: Overlap | None) -> int:
    """Return the tokens on the GPU that it is expected to keep; 0 if the overlap is unknown."""
    return 0 if overlap is None else min(overlap.gpu_tokens, overlap.expected_tokens)


def block_tokens(rows: Sequence[Row]) -> int:
    """Return the block size used for all rows of one decision, in tokens."""
    return min([row.block_tokens for row in rows if row.block_tokens], default=DEFAULT_BLOCK_TOKENS)


def pooled_tokens(view: View) -> int:
    """Return the prompt tokens that the shared pool holds; 0 if the pool's content is unknown."""
    return 0 if view.pool is None else view.pool.tokens


def whole_tokens(view: View) -> int:
    """Return the prompt's length in tokens; where it is unknown, the longest run that any row or the pool holds."""
    if view.prompt_tokens is not None:
        return view.prompt_tokens
    longest = pooled_tokens(view)
    for row in view.rows:
        if (overlap := row.overlap) is not None:
            longest = max(longest, overlap.expected_tokens, overlap.disk_tokens)
    return longest


def used_tokens(load: Load) -> int:
    """Return the KV tokens in use at a target; if unknown, the contexts of all requests, as if they shared
    nothing.
    """
    return load.context_tokens if load.live_tokens is None else load.live_tokens


class BlockWeights(NamedTuple):
    """Weights of `blocks_ahead`."""

    prefill: float  # of a block to prefill
    in_use: float  # of a block of KV in use
    request: float
    floor: float = 0.0  # of the tokens to prefill


def blocks_ahead(rows: Sequence[Row], credits: list[float], prompt_tokens: int, weights: BlockWeights) -> list[float]:
    """Return the weighted sum of the blocks to prefill at each row (its queue and the prompt less its credit), the
    blocks of KV in use with this prompt, and the requests there.
    """
    unit = block_tokens(rows)
    costs: list[float] = []
    for i, row in enumerate(rows):
        load = row.load
        ahead = load.prefill_tokens + prompt_tokens - credits[i]
        if ahead < weights.floor:
            ahead = weights.floor
        in_use = weights.in_use * (used_tokens(load) + prompt_tokens)
        costs.append((weights.prefill * ahead + in_use) / unit + weights.request * load.requests)
    return costs


def split_prefill(rows: Sequence[Row], prefill: Sequence[float], weight: float) -> dict[str, list[float]]:
    """Return the tokens of prefill ahead at each row, times `weight`, in two parts: `queued_prefill`, and
    `own_prefill`, which is this prompt less its credit and negative if the credit exceeds the prompt.
    """
    queued = [row.load.prefill_tokens for row in rows]
    return {
        "queued_prefill": [weight * tokens for tokens in queued],
        "own_prefill": [weight * (ahead - tokens) for ahead, tokens in zip(prefill, queued, strict=True)],
    }
