"""Prompt tokens that a target still has to compute, relative to a stated full load.

    cost = min(1, tokens in flight / full_tokens)

This is llm-d's `token-load-scorer` inverted (`1 - min(1, inflightTokens / 4_194_304)`): its tokens in flight are
uncached input, freed at the first chunk, which the router's bookings call `prefill_tokens`. llm-d's estimate of
output tokens (`addEstimatedOutputTokens`, 1.5 times the input) is off by default and left out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_at_least


@dataclass(frozen=True)
class TokenLoad(Scorer):
    """Uncached prompt tokens of our requests that wait for their first token, as a share of `full_tokens`.

    Never missing: the router counts its own requests. With the default, differences are small beside other scorers'
    points: 100,000 tokens are 0.024.
    """

    needs = Needs.LOAD
    unit = Unit.POINTS

    full_tokens: int = 4_194_304

    def __post_init__(self) -> None:
        check_at_least(1, full_tokens=self.full_tokens)

    def score(self, view: View) -> Sequence[float]:
        full = self.full_tokens
        return [min(1.0, row.load.prefill_tokens / full) for row in view.rows]
