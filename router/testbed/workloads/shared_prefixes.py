"""Open loops of requests that begin with one of a few shared prompts: system prompts, tools, customers' documents.

Requests arrive as a Poisson process and do not wait for answers. Each begins with one of `prefixes` shared prompts,
drawn by popularity, or with none, and goes on with tokens of its own. Times, choices and lengths have separate random
generators: another rate or scale leaves the rest unchanged.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from router.testbed.rng import Rng
from router.testbed.workloads.arrivals import OpenArrivals
from router.testbed.workloads.distributions import LogNormal, draw_gap_s, draw_uniform
from router.testbed.workloads.model import Span, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixWorkload:
    name: str
    requests: int
    per_s: float  # mean requests per second
    prefixes: int  # different shared prompts
    zipf: float  # the k-th of them is drawn k^-zipf as often as the first; 0: all equally often
    prefixed: float  # share of requests that begin with one
    prefix_tokens: LogNormal  # drawn once for each
    own_tokens: LogNormal  # after a shared prompt, of one request only
    alone_tokens: LogNormal  # of a request without one
    output_tokens: LogNormal

    def scale(self, *, tokens: float = 1.0) -> SharedPrefixWorkload:
        """Return the same shapes with every length multiplied by `tokens`."""
        return replace(
            self,
            prefix_tokens=self.prefix_tokens.times(tokens),
            own_tokens=self.own_tokens.times(tokens),
            alone_tokens=self.alone_tokens.times(tokens),
            output_tokens=self.output_tokens.times(tokens),
        )

    def workload(self, seed: int) -> Workload:
        """Generate the workload; the same preset and seed always give the same one."""
        rng = Rng(seed)
        times, choices, lengths, sources = (Rng(rng.bits()) for _ in range(4))
        prefixes = [Span(sources.bits(), self.prefix_tokens.tokens(lengths)) for _ in range(self.prefixes)]
        popularity = list(accumulate((rank + 1) ** -self.zipf for rank in range(self.prefixes)))
        arrivals, at_s = OpenArrivals(), 0.0
        for _ in range(self.requests):
            prefix = _draw(prefixes, popularity, choices) if draw_uniform(choices) < self.prefixed else ()
            own = (self.own_tokens if prefix else self.alone_tokens).tokens(lengths)
            arrivals.add(at_s, (*prefix, Span(sources.bits(), own)), self.output_tokens.tokens(lengths))
            at_s += draw_gap_s(times, self.per_s)
        return Workload(self.name, seed, arrivals, is_closed=False)


def _draw(prefixes: Sequence[Span], popularity: Sequence[float], rng: Rng) -> tuple[Span]:
    return (prefixes[bisect(popularity, draw_uniform(rng) * popularity[-1])],)


GROUPS = SharedPrefixWorkload(
    # Published (llm-d, "KV-Cache Wins You Can See", 2025-09): 150 groups with 6,000 shared tokens each, queries of
    # 1,200 of their own, answers of 1,000, 3 to 60 requests per second on 8 instances. Lengths are constant there.
    # Chosen: every request draws its group at random, all equally likely. Derived ideal: 6,000 / 7,200 = 83.3 % once
    # each group was seen, which costs 150 of the requests.
    name="groups",
    requests=6_000,
    per_s=20.0,
    prefixes=150,
    zipf=0.0,
    prefixed=1.0,
    prefix_tokens=LogNormal(6_000, 0),
    own_tokens=LogNormal(1_200, 0),
    alone_tokens=LogNormal(1_200, 0),
    output_tokens=LogNormal(1_000, 0),
)

TOOLS = SharedPrefixWorkload(
    # Published (Mooncake, FAST'25, the trace "tool & agent"): 23,608 requests in an hour, in the mean 8,596 tokens in
    # and 182 out, and 59 % of the input is in an infinite cache of blocks of 512 tokens; few blocks are hit by
    # thousands of requests, most by none.
    # Chosen: 12 prompts of about 6,450 tokens, begun by 80 % of the requests, the k-th k^-1 as often as the first.
    # Derived: own = (8,596 - 0.2 x 9,000) / 0.8 - 6,450 = 2,045 after a shared prompt. A shared prompt's last block is
    # half full on average: 0.8 x (6,450 - 256) / 8,596 = 57.6 % in blocks of 512, 60 % in blocks of 16.
    name="tools",
    requests=23_608,
    per_s=23_608 / 3_600,
    prefixes=12,
    zipf=1.0,
    prefixed=0.8,
    prefix_tokens=LogNormal.of_mean(6_450, 0.03),
    own_tokens=LogNormal.of_mean(2_045, 0.8),
    alone_tokens=LogNormal.of_mean(9_000, 0.8),
    output_tokens=LogNormal.of_mean(182, 1.0),
)
