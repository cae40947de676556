"""Back to the cache while it starts in time, else to whoever starts first: DualMap's choice between two candidates.

    best = who holds most of the prompt
    TTFT(best) <= objective :  best holders before all others, by TTFT
    else                    :  by TTFT

DualMap's SLO-aware routing (arXiv 2602.06502): "cache affinity first, load once the objective is missed". Meant to come
after the filter `dual_hash`; it works among any number of rows. There pending tokens times a constant are the TTFT, and
equal holders are told apart by KV memory in use; here it is the learned curve with the cheapest way to fetch (ttft.py).
Its rebalancing, which moves requests that wait in the router from one candidate to the other when both are overloaded,
has no counterpart: here requests wait in the engines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.bounds import check_not_negative
from scorers.contract import Needs, Scorer, Unit, View
from scorers.polled import check_stale_s
from scorers.ttft import prompt_of, ttfts_ms


@dataclass(frozen=True)
class Dualmap(Scorer):
    """Milliseconds to the first token; who does not hold most pays the objective on top while one who does meets it.

    The objective is the request's own, or else `ttft_ms`. Held is what lies on the GPU, what was just sent there
    included.
    Missing: a row of unknown overlap holds what the others hold on average; the rest as in `expected_ttft`.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.MS

    ttft_ms: float = 5000.0
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_not_negative(ttft_ms=self.ttft_ms)
        check_stale_s(self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        prompt = prompt_of(view)
        ttfts = ttfts_ms(view.rows, prompt, self.stale_s)
        objective = self.ttft_ms if view.ask.ttft_ms is None else view.ask.ttft_ms
        held = [prompt.unknown if row.overlap is None else row.overlap.expected_tokens for row in view.rows]
        most = max(held)
        if min([ttft for ttft, tokens in zip(ttfts, held, strict=True) if tokens == most]) > objective:
            return ttfts
        return [ttft if tokens == most else ttft + objective for ttft, tokens in zip(ttfts, held, strict=True)]
