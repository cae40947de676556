"""Warmroute's own price: what a request pays for itself at a target, and what it costs all other requests there.

    cost = q + s + 2 (w - 1) work + e n s + answer step (e + lacks / 4)          w = min(cap, 1 / (1 - rho))

    q       the wait: prefill still booked at the target by this router, plus others that wait in its engine
    s       the request's own service there: the least of computing and fetching, at the target's own speed (ttft.py)
    work    the same least of computing and fetching on a nominal instance, the fleet's typical one
    rho     use of the fleet, the larger of two shares: of instances with prefill pending, seen at arrivals and
            averaged over about 20 s (`view.busy`), and of KV memory that live requests use (`view.live_share`)
    e       weight of a second of a streaming answer, others' or the request's own (streams.py)
    n       answers that stream at the target
    answer  expected tokens of the own answer, the mean of the last answers; each takes a decode step of the target
    lacks   KV memory that the request lacks at the target beside all live requests, as a share of the target's

Why each term is there. q and s are the request's own wait: alone they are least TTFT, right in an idle fleet (rho
0, w 1) and selfish in a full one. While an instance spends a second on work that another instance would have been
spared, rho seconds of new work arrive behind it, which delay rho^2 more, and so on: a second of work costs the
fleet 1/(1 - rho) seconds, of which one is the request's own, already paid as s; the rest counts twice. So giving up
a cache hit costs more as the fleet fills. `cap` is needed because at rho 1 an uncapped price means "longest prefix,
whatever the queue", and a block that all prompts share would pull all of them onto one target. Work is priced on a
nominal instance because it displaces fleet time: priced in its own seconds, a slow machine's work would count
double, once in s and once more against its neighbours. Memory counts in rho because a copy of a prefix takes memory
where none is left, even while nobody waits for a prefill yet. q uses own bookings rather than polled gauges: gauges
half a second old send every request of that half second to the same "idle" target. The last two terms count two
more effects: prefill delays the answers that stream beside it, so work goes where few stream, which also spreads
sessions, and with them caches, evenly; and a full memory is a queue too.

The first three terms were found by search over some 70 variants on a simple simulator. The other terms, the factor
2 and the weights were found on our simulator, which models decoding, chunked prefill, attention over the cached
prefix and memory that running requests take up. The workloads were conversations, tools and agents in closed loops
on 4, 8 and 32 instances, with and without pools, with lost and late events, slow instances and late starts. Other
variants that were tried, and their effects: `docs/design/decisions.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scorers.contract import Measure, Needs, Scorer, Unit, View
from scorers.parameters import check_above_0, check_at_least
from scorers.row_loops import add_weighted
from scorers.streams import answer_tokens, served_ms, split_served_ms
from scorers.ttft import prompt_of, split_works_ms, waits_ms, works_ms

BEHIND = 2.0  # weight of a second of work behind this request, relative to one of its own


@dataclass(frozen=True)
class Warm(Scorer):
    """Milliseconds: the wait, the request's own service, and what it delays others that come after or stream there.

    Blocks sent there so recently that no event can have reported them yet count as held by the GPU: so a burst on
    one prefix stays together, and lost events do little harm. `pool: false` ignores the shared pool.

    Missing: an unknown `busy` or `live_share` is 0, as in an idle fleet. Without a nominal instance work is priced
    at the row's own speed. A row with an unknown overlap is taken to hold nothing but what the pool has: the mean
    of the others would be that of the best holders, since a filter such as `near_longest` leaves little else. Where
    no answer has been seen yet, streaming does not count; an unknown capacity has enough memory. Unknown queues,
    lengths, links and pools: as in `expected_ttft`.
    """

    needs = Needs.CACHE | Needs.POOL | Needs.LOAD
    unit = Unit.MS

    cap: float = 16.0
    pool: bool = True
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_at_least(1, cap=self.cap)  # at 1 the work behind a request costs nothing
        check_above_0(stale_s=self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        rows = view.rows
        prompt = prompt_of(view, pool=self.pool)._replace(unknown=0)
        service = works_ms(rows, prompt)
        waits = waits_ms(rows, service, self.stale_s)
        answer = answer_tokens(view.answer_tokens, view.ask.output_tokens)
        own = served_ms(rows, waits, service, prompt.whole, answer)
        extra = self._behind(view)
        if not extra:
            return own
        work = service if view.nominal is None else works_ms(rows, prompt, view.nominal)
        return add_weighted(own, work, extra)

    def parts(self, view: View) -> Mapping[str, Sequence[float]]:
        rows = view.rows
        prompt = prompt_of(view, pool=self.pool)._replace(unknown=0)
        service = works_ms(rows, prompt)
        answer = answer_tokens(view.answer_tokens, view.ask.output_tokens)
        work = service if view.nominal is None else works_ms(rows, prompt, view.nominal)
        extra = self._behind(view)
        return {
            "wait": waits_ms(rows, service, self.stale_s),
            **split_works_ms(rows, prompt),
            **split_served_ms(rows, service, prompt.whole, answer),
            "work_behind": [extra * fleet for fleet in work],
        }

    def settled_by(self) -> Measure:
        return Measure.SERVED if self.pool else Measure.SERVED_BUT_POOL

    def _behind(self, view: View) -> float:
        """Return the cost, in seconds, of a second of work to the requests behind this one."""
        in_use = max(view.busy or 0.0, view.live_share or 0.0)
        return BEHIND * ((min(self.cap, 1 / (1 - in_use)) if in_use < 1 else self.cap) - 1)
