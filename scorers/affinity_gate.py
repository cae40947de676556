"""Stay with those who hold the prompt, unless all of them are far slower to start than somebody else.

    sticky       match >= share                    match = tokens held / prompt tokens
    keep sticky  unless  least TTFT of the sticky - least TTFT of all > penalty_ms

llm-d's `prefix-cache-affinity-filter` (share 0.80, penalty 18,000 ms, exploration 0; the Gateway API Inference
Extension, where it began, has 5,000 ms and 1 %). There a sidecar's model predicts TTFT, or a constant of 15,928 prefill
tokens a second; here the curve learned of each instance does, with the cheapest way to fetch (ttft.py). Their
exploration (now and then no gate, so that predictions for others stay fresh) is left out: its default is off, and our
curves are learned per instance, not per prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Filter, Needs, View
from scorers.polled import check_stale_s
from scorers.ttft import prompt_of, ttfts_ms


@dataclass(frozen=True)
class AffinityGate(Filter):
    """Keeps targets that hold `share` of the prompt, unless waiting for the best of them costs `penalty_ms` of TTFT.

    Held is what lies on the GPU, what was just sent there included. `penalty_ms: 0` never leaves the holders, as there.
    Missing: a row of unknown overlap is no holder. If nobody holds enough, all stay. Of a prompt of unknown length the
    longest run that anybody holds is the whole.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD

    share: float = 0.8
    penalty_ms: float = 18_000.0
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise ValueError(f"share: above 0 and at most 1, not {self.share}")
        if self.penalty_ms < 0:
            raise ValueError(f"penalty_ms: at least 0 ms, not {self.penalty_ms}")
        check_stale_s(self.stale_s)

    def keep(self, view: View) -> Sequence[bool]:
        overlaps = [row.overlap for row in view.rows]
        enough = max(1.0, self.share * (view.prompt_tokens or prompt_of(view, pool=False).whole))
        sticky = [overlap is not None and overlap.expected_tokens >= enough for overlap in overlaps]
        everybody = [True] * len(sticky)
        if not any(sticky) or all(sticky):
            return everybody
        if self.penalty_ms:
            ttfts = ttfts_ms(view.rows, prompt_of(view), self.stale_s)
            best = min([ttft for ttft, stuck in zip(ttfts, sticky, strict=True) if stuck])
            if best - min(ttfts) > self.penalty_ms:
                return everybody
        return sticky
