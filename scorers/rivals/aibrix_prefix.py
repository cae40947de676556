"""AIBrix's `prefix-cache` router: the best match that is not busier than usual, or else the least loaded target.

    most - least requests > imbalance     -> fewest requests
    else, of those with a match and       requests <= mean + sigma * standard deviation
                                          -> highest match in per cent, then fewest requests
    no such row                           -> fewest requests

Source: vllm-project/aibrix, pkg/plugins/gateway/algorithms/prefix_cache.go; defaults as in the code (8 and 1; its
README says 16 and 2). Later versions call a fleet unbalanced only if the busiest target also has more than 2 * (mean +
1) requests, and then still match among the least loaded. AIBrix matches its own table of hashed blocks of 128
characters, which forgets by age and size; here the match comes from the engines' events and from what was just sent.
Requests are this router's own in flight, which is what AIBrix's gateway counts too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor, sqrt

from scorers.blocks import fill_held, whole_tokens
from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_at_least
from scorers.row_loops import rank_matches


@dataclass(frozen=True)
class AibrixPrefix(Scorer):
    """A rank as a number: below 0 the matches that are not too busy, by per cent; from 0 on all others, by
    requests.

    Missing: a row with an unknown overlap matches as much as the others do on average. For a prompt of unknown
    length, the longest run that any row holds stands in for the whole prompt. Requests are never missing.
    """

    needs = Needs.CACHE | Needs.LOAD
    unit = Unit.RAW

    imbalance: int = 8
    sigma: float = 1.0

    def __post_init__(self) -> None:
        check_at_least(0, imbalance=self.imbalance, sigma=self.sigma)

    def score(self, view: View) -> Sequence[float]:
        requests = [row.load.requests for row in view.rows]
        most = max(requests)
        if most - min(requests) > self.imbalance:
            return requests
        bound = self._bound(requests)
        whole = max(1, whole_tokens(view))
        return rank_matches(requests, fill_held(view.rows), whole, bound, most)

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        """Return two parts: the requests (a fraction of one per cent if a match decides) and the match in per
        cent.
        """
        costs = self.score(view)
        matches = [min(0, floor(cost)) for cost in costs]
        return {
            "requests": [cost - match for cost, match in zip(costs, matches, strict=True)],
            "match": matches,
        }

    def _bound(self, requests: Sequence[int]) -> float:
        mean = sum(requests) / len(requests)
        variance = sum([count * count for count in requests]) / len(requests) - mean * mean
        return mean + self.sigma * sqrt(max(0.0, variance))
