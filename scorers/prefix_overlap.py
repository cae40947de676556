"""Share of the prompt that a target does not hold and would have to compute.

    held = gpu * G + cpu * C + disk * D
    cost = 1 - (1 - length_weight) * held / prompt tokens - length_weight * min(1, held / length_tokens)^2

G, C and D are the prompt tokens that the target holds in each tier and in no faster one. The cost is llm-d's
precise prefix score inverted (a GPU block counts 1.0, one in host memory 0.8; `pkg/kvcache` of llm-d-kv-cache),
with the length awareness of its prefix-cache-scorer (`matchLengthWeight`, off by default, and
`matchLengthScaleTokens`): attention makes a long match worth more than its share, so a long session stays where a
short one may move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scorers.blocks import TierWeights, weigh_tiers
from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_at_least, check_shares
from scorers.polled import fill_missing
from scorers.row_loops import add_short_match, missing_shares


@dataclass(frozen=True)
class PrefixOverlap(Scorer):
    """The share of the prompt that a target does not hold; tokens in slower tiers count less.

    `expected` counts blocks sent there so recently that no event can have reported them yet as held by the GPU.
    Missing: a row with an unknown overlap gets the mean of the known ones, so that silence neither attracts nor
    repels. Where the prompt's length is unknown (text before an image), the longest overlap stands in for it: the
    best holder costs least. If no overlap is known, every row costs 1. With a `length_weight`, a whole match costs
    0 only from `length_tokens` on.
    """

    needs = Needs.CACHE
    unit = Unit.POINTS

    gpu: float = 1.0
    cpu: float = 0.8
    disk: float = 0.5
    expected: bool = True
    length_weight: float = 0.0
    length_tokens: int = 8192

    def __post_init__(self) -> None:
        check_shares(gpu=self.gpu, cpu=self.cpu, disk=self.disk, length_weight=self.length_weight)
        check_at_least(1, length_tokens=self.length_tokens)

    def score(self, view: View) -> Sequence[float]:
        weights = TierWeights(gpu=self.gpu, host=self.cpu, pool=0.0, disk=self.disk)
        usable = weigh_tiers(view.rows, weights, 0, self.expected)
        known = [tokens for tokens in usable if tokens is not None]
        whole = view.prompt_tokens or max(known, default=0.0)
        if not known or whole <= 0:
            return [1.0] * len(usable)
        tokens_of = known if len(known) == len(usable) else fill_missing(usable)
        shares = missing_shares(tokens_of, whole)
        if not self.length_weight:
            return shares
        return add_short_match(shares, tokens_of, self.length_weight, self.length_tokens)

    def parts(self, view: View) -> Mapping[str, Sequence[float]] | None:
        """Return two parts: the share that is not held, and what the match lacks in length. None if length does not
        count.
        """
        if not self.length_weight:
            return None
        shares = [(1 - self.length_weight) * share for share in replace(self, length_weight=0.0).score(view)]
        return {
            "not_held": shares,
            "short_match": [cost - share for cost, share in zip(self.score(view), shares, strict=True)],
        }
