"""Mooncake's Algorithm 1: fetch the longest prefix where it is much longer than the target's own, else compute.

    best / own < balancing_threshold :  cost = queue + prefill(prompt, own)
    else                             :  cost = transfer(best - own) + queue + prefill(prompt, best)

Source: arXiv 2407.00079, section 6. A transfer leaves a copy at the target, so a hot prefix spreads by use: the
engines do this, and the price only sends requests to the target. Unlike in `expected_ttft`, a ratio decides about
the transfer, not the price, so a link slower than computing is used all the same.

The paper gives no value for the threshold; 1.5 is ours. In the paper `best` is the prefix of another instance, from
which it is transferred. Here it may also be the prefix in the shared pool, which wins if it is as long, because
engines fetch from pools by themselves. The own prefix includes host memory at no price: the paper loads it layer by
layer behind the computing. Rejecting a request whose TTFT or TBT would miss its objective, and choosing the decode
instance, are outside a scorer's task.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.blocks import fill_credits
from scorers.contract import Needs, Overlap, Row, Scorer, Unit, View
from scorers.parameters import check_at_least
from scorers.row_loops import fetch_longest_ms


@dataclass(frozen=True)
class MooncakeAlg1(Scorer):
    """Milliseconds to the first token, where a prefix that is `balancing_threshold` times the own is always
    fetched.

    Missing: a row with an unknown overlap holds what the others hold on average. A link of unknown speed carries
    nothing: the row computes after its own prefix. An unknown pool holds nothing. For a prompt of unknown length,
    the longest run that any row holds stands in for the whole prompt. The queue is our own bookings.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.MS

    balancing_threshold: float = 1.5

    def __post_init__(self) -> None:
        check_at_least(1, balancing_threshold=self.balancing_threshold)

    def score(self, view: View) -> Sequence[float]:
        own = [round(held) for held in fill_credits(view.rows, _held)]
        pooled = 0 if view.pool is None else view.pool.tokens
        whole = max(view.prompt_tokens or 0, max(own), pooled)
        return fetch_longest_ms(view.rows, own, whole, pooled, self.balancing_threshold)

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        own = [round(held) for held in fill_credits(view.rows, _held)]
        pooled, longest = 0 if view.pool is None else view.pool.tokens, max(own)
        best = max(longest, pooled)
        name = "load_from_pool" if pooled >= longest else "load_from_peer"
        whole = max(view.prompt_tokens or 0, best)
        compute, load = [], []
        for row, held in zip(view.rows, own, strict=True):
            link = row.speed.pool if pooled >= longest else row.speed.peer
            if link is None or held == best or best < self.balancing_threshold * held:
                load.append(0.0)
                compute.append(row.speed.prefill_ms(whole - held, held))
            else:
                load.append(link.base_ms + link.us_per_token * (best - held) / 1000)
                compute.append(row.speed.prefill_ms(whole - best, best))
        return {"wait": [row.load.queued_ms for row in view.rows], "compute": compute, name: load}


def _held(_row: Row, overlap: Overlap) -> float:
    return max(overlap.expected_tokens, overlap.cpu_tokens)
