"""SMetric: a session stays where its prefix is while that target meets the objective; else the least queue times
load.

    cost  = c_lin * n + c_att * n * (L - n / 2)        n: uncached tokens of the L of the prompt; attention included
    q     = cost of what is queued at the target + cost of this request there
    meets = q / rate <= slack * (base + per token * L)        an unknown rate meets every objective

    stay     at the target with the longest match, if this is not the session's first turn, that match is more than
             `hit_ratio` of what the session's previous turn sent, and the target meets or nobody does
    else     least q * requests; least q with `colocated: false`, for prefill halves of pairs

Wang et al., "SMetric" (arXiv 2607.08565), as in vllm-project/router, src/policies/smetric.rs (a branch), with its
constants. Its objective has no default in the branch; 1 s + 62.5 us per token and slack 1 are those of the fork
that documents some. The rate of a target is `prefill_rate`, or is learned: the 90th percentile of cost over TTFT of
the target's last 64 answers, from 8 answers on. TTFT includes the queue, so the fastest answers come near what the
engine can do.

Differences: lengths are tokens of the index, not characters of a tree of sent text. A later turn is recognised by
the session's last target instead of by assistant messages in the body. The queue of a target is known only as a sum
of uncached tokens, so its attention is computed as if all its requests had the mean length.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scorers.blocks import whole_tokens
from scorers.contract import Load, Needs, Outcome, Row, Scorer, Unit, View
from scorers.memory import MAX_SESSIONS, MAX_TARGETS, remember
from scorers.parameters import check_above_0, check_at_least
from scorers.rivals.prefix_trees import match_tokens
from scorers.row_loops import prompt_cost, queue_costs

LEAST_TTFT_MS = 0.001  # finer than any clock, so that no rate is infinite

SAMPLES, ENOUGH, QUANTILE = 64, 8, 0.9


@dataclass
class ObservedRate:
    """The 90th percentile of a target's last 64 observed rates, in units of cost per second; None before the 8th
    rate.
    """

    samples: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    per_s: float | None = None

    def observe(self, per_s: float) -> None:
        """Add the rate of one answer."""
        self.samples.append(per_s)
        if len(self.samples) >= ENOUGH:
            ranked = sorted(self.samples)
            self.per_s = ranked[int(QUANTILE * (len(ranked) - 1) + 0.5)]


@dataclass
class Smetric(Scorer):
    """-1 for the target that keeps its session; for all others the cost of their queue with this request, times
    load.

    Held is what the target has in any tier or was just sent. Missing: an unknown overlap matches nothing; where the
    prompt's length is unknown, the longest match stands in for it. Requests without a session, and a session's
    first, go by queue and load. Of a session whose previous prompt is not known (after a switch of policies), this
    prompt's length stands in for it. The load is the router's own bookings, which are never missing.
    """

    needs = Needs.CACHE | Needs.LOAD | Needs.SESSION
    unit = Unit.RAW

    c_lin: float = 1.0
    c_att: float = 1e-4
    prefill_rate: float | None = None  # units of cost per second; None: learned
    hit_ratio: float = 0.1
    slack: float = 1.0
    ttft_base_s: float = 1.0
    ttft_s_per_1k_tokens: float = 0.0625
    colocated: bool = True

    _rates: dict[str, ObservedRate] = field(default_factory=dict, init=False, repr=False)
    _sent: dict[tuple[str, str], int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_at_least(0, c_lin=self.c_lin, c_att=self.c_att, hit_ratio=self.hit_ratio, slack=self.slack)
        check_at_least(0, ttft_base_s=self.ttft_base_s, ttft_s_per_1k_tokens=self.ttft_s_per_1k_tokens)
        if self.prefill_rate is not None:
            check_above_0(prefill_rate=self.prefill_rate)

    def score(self, view: View) -> Sequence[float]:
        whole, held = whole_tokens(view), match_tokens(view.rows)
        queues = queue_costs(view.rows, held, whole, self.c_lin, self.c_att)
        loads = [row.load.requests if self.colocated else 1 for row in view.rows]
        costs = [queue * load for queue, load in zip(queues, loads, strict=True)]
        if (home := self._home(view, whole, held, queues)) is not None:
            costs[home] = -1.0
        return costs

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        """Return the cost of the queue and of this request at each row, each times the load; both are 0 where the
        session stays.
        """
        whole, held, costs = whole_tokens(view), match_tokens(view.rows), self.score(view)
        loads = [
            0 if cost < 0 else row.load.requests if self.colocated else 1
            for row, cost in zip(view.rows, costs, strict=True)
        ]
        queued = [load * self._queued(row.load) for row, load in zip(view.rows, loads, strict=True)]
        own = [load * self._cost(whole, tokens) for load, tokens in zip(loads, held, strict=True)]
        return {"queued_prefill": queued, "own_prefill": own, "session": [min(0.0, cost) for cost in costs]}

    def picked(self, view: View, row: Row) -> None:
        if view.session is not None:
            remember(self._sent, (view.model, view.session), whole_tokens(view), MAX_SESSIONS)

    def finished(self, view: View, row: Row, outcome: Outcome) -> None:
        cost = self._cost(whole_tokens(view), match_tokens([row])[0])
        if outcome.ok and outcome.ttft_ms and cost > 0 and self.prefill_rate is None:
            rate = self._rates.get(row.target) or ObservedRate()
            rate.observe(cost * 1e3 / max(LEAST_TTFT_MS, outcome.ttft_ms))
            remember(self._rates, row.target, rate, MAX_TARGETS)

    def _home(self, view: View, whole: int, held: Sequence[int], queues: Sequence[float]) -> int | None:
        """Return the index of the row that keeps the session; None if no row does."""
        if view.session is None or view.last_target is None:
            return None
        longest = max(held)
        if longest <= self.hit_ratio * self._sent.get((view.model, view.session), whole):
            return None
        objective_s = self.slack * (self.ttft_base_s + self.ttft_s_per_1k_tokens * whole / 1e3)
        meets = [self._meets(row, queue, objective_s) for row, queue in zip(view.rows, queues, strict=True)]
        longest_held = (i for i, tokens in enumerate(held) if tokens == longest)
        home = min(longest_held, key=lambda i: (queues[i], view.rows[i].target))
        return home if meets[home] or not any(meets) else None

    def _meets(self, row: Row, queue: float, objective_s: float) -> bool:
        learned = self._rates.get(row.target)
        rate = self.prefill_rate if self.prefill_rate is not None else learned.per_s if learned is not None else None
        return rate is None or queue <= objective_s * rate

    def _cost(self, whole: int, held: int) -> float:
        """Return the cost of a prompt of `whole` tokens at a target that holds `held` of them."""
        return prompt_cost(whole, held, self.c_lin, self.c_att)

    def _queued(self, load: Load) -> float:
        """Return the cost of a target's queued prefill, assuming that all its requests have the same length."""
        if not (load.prefilling and load.requests):
            return self.c_lin * load.prefill_tokens
        new = load.prefill_tokens / load.prefilling
        whole = max(new, load.context_tokens / load.requests)
        return load.prefilling * (self.c_lin * new + self.c_att * new * (whole - new / 2))
