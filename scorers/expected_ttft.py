"""Time to the first token: the waiting, fetching and computing that a request has ahead at each target.

    cost = queued + others waiting * mean work + work
    work = least of all ways:  base + us_per_token * fetched, of every link used  +  prefill(prompt - reached, reached)

This is the Mooncake paper's Algorithm 1 (arXiv 2407.00079, section 6: T_queue + T_transfer + T_prefill), except for
when to transfer: in the paper a ratio of prefix lengths decides (`mooncake_alg1.py`), here the price (`ttft.py`
lists the ways).

If a link is slower than the prefill, fetching is never the least: such a pool changes no cost and attracts no
request. (vLLM's connector has no such test and fetches whatever the pool holds, but this is no reason to send a
request where it must fetch.) Loading and a queue before it may overlap; they are added up, as in the paper, which
errs towards the target that holds the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.contract import Measure, Needs, Scorer, Unit, View
from scorers.parameters import check_above_0
from scorers.ttft import prompt_of, split_ttfts_ms, ttfts_ms, work_left


@dataclass(frozen=True)
class ExpectedTtft(Scorer):
    """Milliseconds to the first token: the queue, then the cheapest mix of fetching and computing the prompt's KV.

    Blocks sent there so recently that no event can have reported them yet count as held by the GPU. `pool: false`
    prices every target as if there were no shared pool.

    Requests of other clients: of those that waited in the engine at its last poll, the share that was not ours;
    each is taken for a request like this one on an average target. Our own that wait are `queued`, always up to
    date.

    Missing: a row with an unknown overlap is taken to hold on its GPU what the others hold on average; the pool
    counts for it as for all. Where the prompt's length is unknown, the longest run that any row holds stands in for
    it. An engine that has not reported its queue, or longer than `stale_s` ago, is taken for an average one. A link
    of unknown speed is not used, an unknown pool holds nothing.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.MS

    pool: bool = True
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_above_0(stale_s=self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        return ttfts_ms(view.rows, prompt_of(view, pool=self.pool), self.stale_s)

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        return split_ttfts_ms(view.rows, prompt_of(view, pool=self.pool), self.stale_s)

    def settled_by(self) -> Measure:
        return work_left(pool=self.pool)
