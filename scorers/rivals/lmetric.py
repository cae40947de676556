"""LMetric: the prefill ahead at a target, multiplied by its batch. A product needs no weights to tune.

    cost = prefill * (decode + 1)          both in blocks
    prefill = max(0, queued prefill + prompt - credit)      credit as in Dynamo's cost
    decode  = KV memory in use there, blocks that requests share counted once, and this prompt

"Simple is Better: Multiplication May Be All You Need for LLM Request Scheduling" (Zhang et al., arXiv 2603.15202),
in the form of ai-dynamo/dynamo's `lmetric` selection policy (pull request 11028): the paper multiplies the new
prefill tokens by the batch size, Dynamo by the blocks in use. In a sum each weight fixes how many blocks of KV are
worth one of prefill; in a product a factor common to all targets cancels out.

Where nothing is left to compute and nothing is queued, the product is 0 whatever the load. A full hit is not such a
case, since overlaps leave out the last prompt token. Credits that add up to more than 1 are such a case, and so is
a prompt of unknown length at its longest holder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.blocks import Credit, block_tokens, split_prefill, used_tokens, whole_tokens
from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_at_least


@dataclass(frozen=True)
class Lmetric(Scorer):
    """Blocks to prefill there, less those that caches save, times blocks of KV in use plus one.

    Missing: a row with an unknown overlap gets the mean credit of the others; an unknown pool holds nothing; where
    the prompt's length is unknown, the longest run that any row holds stands in for it. The load is the router's
    own bookings, which are never missing.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.RAW

    overlap_score_credit: float = 1.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    shared_cache_multiplier: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(0, **vars(self))

    def score(self, view: View) -> Sequence[float]:
        rows, whole, unit = view.rows, whole_tokens(view), block_tokens(view.rows)
        credits = Credit.of(self).of_rows(view)
        return [
            max(0.0, row.load.prefill_tokens + whole - credit) / unit * ((used_tokens(row.load) + whole) / unit + 1)
            for row, credit in zip(rows, credits, strict=True)
        ]

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        """Return queued and own prefill, each multiplied by the batch as in the cost."""
        rows, whole, unit = view.rows, whole_tokens(view), block_tokens(view.rows)
        credits = Credit.of(self).of_rows(view)
        ahead = [max(0.0, row.load.prefill_tokens + whole - credit) for row, credit in zip(rows, credits, strict=True)]
        batches = [(used_tokens(row.load) + whole) / unit + 1 for row in rows]
        return {
            name: [blocks * batch for blocks, batch in zip(values, batches, strict=True)]
            for name, values in split_prefill(rows, ahead, 1 / unit).items()
        }
