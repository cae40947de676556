"""NVIDIA Dynamo's cost: prefill ahead at a target plus the KV it would then hold, in blocks.

    prefill = max(0, queued prefill + prompt - credit)                   no floor where overlap_score_credit > 1
    credit  = overlap_score_credit * decay * G + host_cache_hit_weight * C
            + disk_cache_hit_weight * D + shared_cache_multiplier * S
    decay   = 1 / (1 + overlap_score_credit_decay * (queued - least queued) / prompt)
    cost    = prefill_load_scale * prefill + decode + decode_active_request_weight * requests

G, C and D are the prompt tokens that the target holds in each tier and in no faster one; S is what the shared pool
holds beyond G; decode is the KV memory in use there, blocks that requests share counted once, and the prompt.
Names, formula and defaults: ai-dynamo/dynamo, lib/kv-router/src/scheduling/selector/default.rs and config.rs (the
floor: pull request 11714). Its `router_temperature` is the picker `softmax`, its default of 0 the picker `best`.

Differences from Dynamo: of the prompt Dynamo adds only the blocks that no running request has at the target, here
all are added, which makes 97 % of its choices where sessions share little, and 67 % where running requests share most
of a prompt (`python -m tests.headtohead.copies`); Dynamo multiplies by "taints" of workers; Dynamo's time-based
estimate of prefill progress is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.blocks import (
    BlockWeights,
    Credit,
    block_tokens,
    blocks_ahead,
    pooled_tokens,
    split_prefill,
    used_tokens,
    whole_tokens,
)
from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_at_least
from scorers.polled import fill_missing


@dataclass(frozen=True)
class DynamoCost(Scorer):
    """Blocks to prefill there, less those that caches save, plus blocks of KV in use: NVIDIA Dynamo's cost.

    Missing: a row with an unknown overlap gets the mean credit of the others; an unknown pool holds nothing; where
    the prompt's length is unknown, the longest run that any row holds stands in for it. The load is the router's
    own bookings, which are never missing.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.BLOCKS

    overlap_score_credit: float = 1.0
    overlap_score_credit_decay: float = 0.0
    prefill_load_scale: float = 1.0
    host_cache_hit_weight: float = 0.75
    disk_cache_hit_weight: float = 0.25
    shared_cache_multiplier: float = 0.0
    decode_active_request_weight: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(0, **vars(self))

    def score(self, view: View) -> Sequence[float]:
        whole = whole_tokens(view)
        floor = 0.0 if self.overlap_score_credit <= 1 else float("-inf")
        weights = BlockWeights(self.prefill_load_scale, 1.0, self.decode_active_request_weight, floor)
        return blocks_ahead(view.rows, self._credits(view, whole), whole, weights)

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        rows, whole = view.rows, whole_tokens(view)
        unit, scale = block_tokens(rows), self.prefill_load_scale
        floor = 0.0 if self.overlap_score_credit <= 1 else float("-inf")
        ahead = [
            max(floor, row.load.prefill_tokens + whole - credit)
            for row, credit in zip(rows, self._credits(view, whole), strict=True)
        ]
        return {
            **split_prefill(rows, ahead, scale / unit),
            "kv_in_use": [used_tokens(row.load) / unit for row in rows],
            "own_kv": [whole / unit] * len(rows),
            "requests": [self.decode_active_request_weight * row.load.requests for row in rows],
        }

    def _credits(self, view: View, whole: int) -> list[float]:
        """Return the tokens credited to each row."""
        credit, decay = Credit.of(self), self.overlap_score_credit_decay
        if decay == 0 or whole == 0:
            return credit.of_rows(view)
        pooled = pooled_tokens(view)
        least = min([row.load.prefill_tokens for row in view.rows])
        credited: list[float | None] = []
        for row in view.rows:
            share = 1 / (1 + decay * (row.load.prefill_tokens - least) / whole)
            credited.append(None if row.overlap is None else credit.tokens(row.overlap, pooled, share))
        return fill_missing(credited)
