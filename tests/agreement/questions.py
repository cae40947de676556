"""The requests of llm-d's benchmark: 150 customers, five questions of each, asked again and again.

Its generator (inference-perf, "shared_prefix") makes 750 prompts, shuffles them and goes through them in turns. The
first round, 15 a second, fills the caches; after a pause in which all of it is answered comes the stage that is
measured. Not the preset `groups`, whose questions are all different ones, as llm-d's blog may be read.
"""

from __future__ import annotations

from router.lab.rng import Rng
from router.lab.workloads.arrivals import OpenArrivals
from router.lab.workloads.distributions import draw_gap_s
from router.lab.workloads.model import Span, Workload

GROUPS, PER_GROUP = 150, 5
SHARED_TOKENS, OWN_TOKENS, ANSWER_TOKENS = 6000, 1200, 1000
FIRST_PER_S, PAUSE_S = 15.0, 70.0


def questions(per_s: float, lasts_s: float, seed: int) -> Workload:
    """All of them once, then `per_s` of them for `lasts_s`; Poisson."""
    dice, made, at_s = Rng(seed), OpenArrivals(), 0.0
    order = _shuffled(GROUPS * PER_GROUP, dice)
    for number in range(len(order) + round(per_s * lasts_s)):
        question = order[number % len(order)]
        shared, own = Span(question // PER_GROUP, SHARED_TOKENS), Span(GROUPS + question, OWN_TOKENS)
        if number == len(order):
            at_s += PAUSE_S
        made.add(at_s, (shared, own), ANSWER_TOKENS)
        at_s += draw_gap_s(dice, FIRST_PER_S if number < len(order) else per_s)
    return Workload("questions", seed, made, is_closed=False)


def first_asked_s(served: Workload) -> float:
    """When the stage that is measured begins."""
    return served.sessions[GROUPS * PER_GROUP].start_s


def _shuffled(count: int, dice: Rng) -> list[int]:
    order = list(range(count))
    for last in range(count - 1, 0, -1):
        other = dice.below(last + 1)
        order[last], order[other] = order[other], order[last]
    return order
