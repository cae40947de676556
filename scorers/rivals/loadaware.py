"""production-stack's `loadaware`: how much busier than the mean a target is, less the share of the prompt it holds.

    cost = beta * (requests - mean) / max(1, mean) - held / prompt tokens

This is the score of vLLM production-stack, pull request 1035, inverted (there the highest score wins). Both terms
are plain numbers: with `beta` 1 a target twice as busy as the mean gives up a whole cache hit. In production-stack
LMCache's controller reports the held tokens; here they are the longest run over all tiers of the instance,
including what was just sent to it. Requests are our own in flight, the `request_stats` of production-stack's
router.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.blocks import fill_credits, whole_tokens
from scorers.contract import Needs, Overlap, Row, Scorer, Unit, View
from scorers.parameters import check_at_least


@dataclass(frozen=True)
class Loadaware(Scorer):
    """Load above the mean, relative to the mean, less the share of the prompt that the target holds.

    Missing: a row with an unknown overlap is taken to hold what the others hold on average. For a prompt of unknown
    length, the longest run that any row holds stands in for the whole prompt. Requests are never missing.
    """

    needs = Needs.CACHE | Needs.LOAD
    unit = Unit.RAW

    beta: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(0, beta=self.beta)

    def score(self, view: View) -> Sequence[float]:
        requests = [row.load.requests for row in view.rows]
        mean = sum(requests) / len(requests)
        worth = self.beta / max(1.0, mean)
        whole = max(1, whole_tokens(view))
        held = fill_credits(view.rows, _held)
        return [worth * (count - mean) - min(1.0, tokens / whole) for count, tokens in zip(requests, held, strict=True)]

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        requests = [row.load.requests for row in view.rows]
        mean = sum(requests) / len(requests)
        load = [self.beta / max(1.0, mean) * (count - mean) for count in requests]
        return {"load": load, "held": [cost - own for cost, own in zip(self.score(view), load, strict=True)]}


def _held(_row: Row, overlap: Overlap) -> float:
    return max(overlap.expected_tokens, overlap.disk_tokens)
