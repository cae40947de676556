"""A filter that keeps a request with the targets that hold its prompt, unless all of them are much slower to start.

    sticky       match >= share                    match = tokens held / prompt tokens
    keep sticky  unless  least TTFT of the sticky - least TTFT of all > penalty_ms

This is llm-d's `prefix-cache-affinity-filter` (share 0.80, penalty 18,000 ms, exploration 0; the Gateway API
Inference Extension, where it began, has 5,000 ms and 1 %). In llm-d a sidecar's model predicts TTFT, or a constant
of 15,928 prefill tokens a second does; here the learned curve of each instance does, with the cheapest way to fetch
(ttft.py). llm-d's exploration (the gate is skipped now and then, so that predictions for other targets stay fresh)
is left out: it is off by default, and these curves are learned per instance, not per prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Filter, Needs, View
from scorers.parameters import check_above_0, check_at_least, check_shares
from scorers.row_loops import hold_enough, lead_ms
from scorers.ttft import prompt_of, ttfts_ms


@dataclass(frozen=True)
class AffinityGate(Filter):
    """Keeps targets that hold `share` of the prompt, unless waiting for the best of them costs `penalty_ms` of
    TTFT.

    Held tokens are those on the GPU, including what was just sent there. `penalty_ms: 0` never leaves the holders,
    as in llm-d.

    Missing: a row with an unknown overlap holds nothing. If no row holds enough, all stay. For a prompt of unknown
    length, the longest run that any row holds stands in for the whole prompt.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD

    share: float = 0.8
    penalty_ms: float = 18_000.0
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_shares(share=self.share)
        check_above_0(share=self.share, stale_s=self.stale_s)
        check_at_least(0, penalty_ms=self.penalty_ms)

    def keep(self, view: View) -> Sequence[bool]:
        enough = max(1.0, self.share * (view.prompt_tokens or prompt_of(view, pool=False).whole))
        sticky = hold_enough(view.rows, enough)
        all_rows = [True] * len(sticky)
        if not any(sticky) or all(sticky):
            return all_rows
        if self.penalty_ms:
            ttfts = ttfts_ms(view.rows, prompt_of(view), self.stale_s)
            if lead_ms(ttfts, sticky) > self.penalty_ms:
                return all_rows
        return sticky
