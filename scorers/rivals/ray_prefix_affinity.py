"""Ray Serve's PrefixCacheAffinityRouter: three ways to find candidates, of which the shortest queue wins.

    max - min requests > imbalanced_threshold:              two at random
    else, longest match / prompt >= match_rate_threshold:   all that hold the longest match
    else:                                                   all with the smallest tree

    cost = requests                       of a candidate
    cost = requests + most requests + 1   of the others: more than any candidate

Source: ray-project/ray, python/ray/llm/_internal/serve/routing_policies/prefix_aware (2026). The code's
`imbalanced_threshold` is infinite, here null; the documentation's example has 10.

Differences from the original: Ray matches against a tree of the characters that each replica was sent, by default
never evicted, where this scorer queries the index, in any tier; Ray tries replicas of the same node or zone first;
in Ray a candidate at its limit of ongoing requests makes the router wait and draw again, which is a matter of
admission control here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from scorers.chance import draws
from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_at_least, check_shares
from scorers.rivals.prefix_trees import match_rate, match_tokens, tree_sizes


@dataclass(frozen=True)
class RayPrefixAffinity(Scorer):
    """Our own requests, at targets that are candidates by match, by tree size or by chance; all others cost more.

    `imbalanced_threshold: null` is no threshold: queues never count against a match.

    Missing: an unknown overlap matches nothing. For a prompt of unknown length any match counts as the whole
    prompt. A row of unknown tree size has an average one; where no size is known, two are drawn.
    """

    needs = Needs.CACHE | Needs.LOAD
    unit = Unit.RAW

    imbalanced_threshold: float | None = None
    match_rate_threshold: float = 0.1

    def __post_init__(self) -> None:
        check_shares(match_rate_threshold=self.match_rate_threshold)
        if self.imbalanced_threshold is not None:
            check_at_least(0, imbalanced_threshold=self.imbalanced_threshold)

    def score(self, view: View) -> Sequence[float]:
        requests = [row.load.requests for row in view.rows]
        most = max(requests)
        unbalanced = self.imbalanced_threshold is not None and most - min(requests) > self.imbalanced_threshold
        candidates = None if unbalanced else self._by_prefix(view)
        if candidates is None:
            candidates = _two_at_random(view)
        penalty = most + 1
        return [count if i in candidates else count + penalty for i, count in enumerate(requests)]

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        requests = [row.load.requests for row in view.rows]
        penalties = [cost - count for cost, count in zip(self.score(view), requests, strict=True)]
        return {"requests": requests, "no_candidate": penalties}

    def _by_prefix(self, view: View) -> Collection[int] | None:
        """Return the candidates by match or by tree size. None if there is no sufficient match and no tree size is
        known.
        """
        matched = match_tokens(view.rows)
        longest = max(matched)
        if match_rate(longest, view.prompt_tokens) >= self.match_rate_threshold:
            return {i for i, tokens in enumerate(matched) if tokens == longest}
        trees = tree_sizes(view.rows)
        if trees is None:
            return None
        smallest = min(trees)
        return {i for i, tokens in enumerate(trees) if tokens == smallest}


def _two_at_random(view: View) -> Collection[int]:
    lots = draws(view.seed, view.number, [row.target for row in view.rows], use="ray")
    return nsmallest(2, range(len(lots)), key=lots.__getitem__)
