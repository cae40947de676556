"""DualMap's choice: the target with the cache while it meets the TTFT objective, else the fastest.

    best = the rows that hold most of the prompt
    TTFT(best) <= objective :  best holders before all others, by TTFT
    else                    :  by TTFT

DualMap's SLO-aware routing (arXiv 2602.06502): "cache affinity first, load once the objective is missed". This
scorer is meant to follow the filter `dual_hash`, but works among any number of rows. DualMap estimates TTFT as
pending tokens times a constant and separates equal holders by KV memory in use; here TTFT is the learned curve with
the cheapest way to fetch (ttft.py). DualMap's rebalancing, which moves requests that wait in the router from one
candidate to the other when both are overloaded, has no counterpart: here requests wait in the engines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_above_0, check_at_least
from scorers.row_loops import best_holders_first
from scorers.ttft import prompt_of, split_ttfts_ms, ttfts_ms


@dataclass(frozen=True)
class Dualmap(Scorer):
    """Milliseconds to the first token, plus the objective for rows that do not hold most, while one that does meets
    it.

    The objective is the request's own, or else `ttft_ms`. Held tokens are those on the GPU, including what was just
    sent there. Missing: a row with an unknown overlap holds what the others hold on average; the rest as in
    `expected_ttft`.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.MS

    ttft_ms: float = 5000.0
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_at_least(0, ttft_ms=self.ttft_ms)
        check_above_0(stale_s=self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        prompt = prompt_of(view)
        ttfts = ttfts_ms(view.rows, prompt, self.stale_s)
        objective = self.ttft_ms if view.ask.ttft_ms is None else view.ask.ttft_ms
        return best_holders_first(view.rows, ttfts, prompt.unknown, objective)

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        prompt = prompt_of(view)
        ttfts = ttfts_ms(view.rows, prompt, self.stale_s)
        added = [cost - ttft for cost, ttft in zip(self.score(view), ttfts, strict=True)]
        return {**split_ttfts_ms(view.rows, prompt, self.stale_s), "no_best_holder": added}
