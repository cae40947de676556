"""SGLang's `cache_aware`, also in vllm-router: the longest match, if it is long enough and loads are balanced.

    max - min requests > balance_abs_threshold and max > balance_rel_threshold * min:   fewest requests
    else, longest match / prompt > cache_threshold:                                     longest match
    else, by `cold`:                                                                    fewest requests or smallest tree

Source: sglang `sgl-router/src/policies/cache_aware.rs` and vllm-project/router `src/policies/cache_aware.rs`, with
the defaults of their command lines (those of the libraries differ: 0.5, 32, 1.1). In earlier releases a cold prompt
went to the smallest tree; newer ones take the fewest requests, the default here.

Differences from the originals: their matches come from a tree of the characters that each worker was sent, evicted
on a timer; here matches come from the index, in any tier. Of several workers with the longest match the originals
take one arbitrarily; here these workers cost the same, and the picker chooses. Without KV events,
so told only what was sent, this copy makes 98.9 % of their choices or more (`tests/headtohead/copies.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_at_least, check_shares
from scorers.rivals.prefix_trees import match_rate, match_tokens, tree_sizes


@dataclass(frozen=True)
class SglangThreshold(Scorer):
    """Our own requests if they are unbalanced, else tokens short of the longest match, else the cost of a cold
    prompt.

    Missing: an unknown overlap matches nothing. For a prompt of unknown length any match counts as the whole
    prompt. A row of unknown tree size has an average one; where no size is known, cold prompts are placed by
    requests.
    """

    needs = Needs.CACHE | Needs.LOAD
    unit = Unit.RAW

    cache_threshold: float = 0.3
    balance_abs_threshold: int = 64
    balance_rel_threshold: float = 1.5
    cold: Literal["least_load", "smallest_tree"] = "least_load"

    def __post_init__(self) -> None:
        check_shares(cache_threshold=self.cache_threshold)
        check_at_least(
            0, balance_abs_threshold=self.balance_abs_threshold, balance_rel_threshold=self.balance_rel_threshold
        )

    def score(self, view: View) -> Sequence[float]:
        requests = [row.load.requests for row in view.rows]
        least, most = min(requests), max(requests)
        if most - least > self.balance_abs_threshold and most > self.balance_rel_threshold * least:
            return requests
        matched = match_tokens(view.rows)
        longest = max(matched)
        if match_rate(longest, view.prompt_tokens) > self.cache_threshold:
            return [longest - tokens for tokens in matched]
        trees = tree_sizes(view.rows) if self.cold == "smallest_tree" else None
        return requests if trees is None else trees
