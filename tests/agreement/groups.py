"""llm-d, "KV-Cache Wins You Can See" (2025-09): 150 groups with a shared context each, over 8 instances of 2 x H100.

Published, with the report in its repository (`benchmarking/73-capacity`): Qwen3-32B, 307,328 KV tokens per instance;
150 groups of 6,000 shared tokens, five questions of 1,200 in each, which come again and again (1.8 million tokens, 73 %
of all caches), answers of 1,000. First every question once, 15 a second; then stages of 20 to 38 s at 3 to 60 requests
a second, each served to its end. Weights of prefix, KV usage, queue: precise 3, 2, 2; approximate, which believes what
it once sent and hears no events, 1, 1, 1; load-only 0, 1, 1. At 60 a second output tokens/s and p90 TTFT are 10,497,
0.5 s; 7,248, 50 s; 4,745, 110 s; over all stages 8,730, 0.54 s; 6,944, 31 s; 4,266 (random: 4,429), 95 s.

Mapping: the same requests in an order of chance, the first stage, 70 s to end it, one stage, in blocks of 64 tokens as
in their index. Two stages, each on a fleet of its own: 60 a second for the tokens, for 60 s instead of 25, or half of
the time would be the last answers' (1.8 to 1.9 times load-only instead of 1.95); 10 a second for the TTFT, where
approximate still keeps up and load-only no longer does, as there at 35 a second. Approximate: no event ever arrives,
and the router falls back on what it sent. Deviations: our `queue_depth` counts running requests too and not only
waiting ones. So it balances load-only better than random, which is not so there, and as a third of the weight it pulls
approximate away from its prefixes earlier than there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf
from statistics import fmean
from typing import NamedTuple

from router.config.schema import PolicyConfig
from router.lab.simulator.outcome import compute_figures
from router.lab.simulator.scenario import EventLags, Scenario
from router.lab.sweep import options
from router.lab.workloads.model import Workload
from tests.agreement.questions import first_asked_s, questions
from tests.agreement.row import Line, Row, order, ratio
from tests.agreement.served import outcome_of, policy

TOP, MIDDLE = 60.0, 10.0
LASTS_S = {TOP: 60.0, MIDDLE: 60.0}
SEEDS = 3


class Arm(NamedTuple):
    policy: PolicyConfig
    hears: bool


def arms() -> dict[str, Arm]:
    return {
        "precise": Arm(weighted(prefix_overlap=3, kv_usage=2, queue_depth=2), hears=True),
        "approximate": Arm(weighted(prefix_overlap=1, kv_usage=1, queue_depth=1), hears=False),
        "load-only": Arm(weighted(kv_usage=1, queue_depth=1), hears=True),
    }


def weighted(**weights: float) -> PolicyConfig:
    """llm-d's profile with these scorers."""
    whole = policy("llmd_weighted")
    scorers = [one.model_copy(update={"weight": weights[one.name]}) for one in whole.scorers if one.name in weights]
    return whole.model_copy(update={"scorers": scorers})


class Stage(NamedTuple):
    """From its first request to its last answer."""

    output_tokens_per_s: float
    ttft_p90_s: float | None


def scenario(arm: Arm) -> Scenario:
    return Scenario(
        profile=options.load_profile("qwen3-32b-2xh100"),
        instances=8,
        block_tokens=64,
        lags=EventLags() if arm.hears else EventLags(events_s=inf),
    )


def stage(arm: Arm, served: Workload) -> Stage:
    seen = compute_figures(outcome_of(scenario(arm), arm.policy, served), since_s=first_asked_s(served))
    return Stage(seen.output_tokens_per_s, seen.ttft_p90_s)


def measure(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    made: dict[str, float] = {}
    p90_s: dict[str, float | None] = {}
    for name, arm in arms().items():
        say(name)
        top = [stage(arm, questions(TOP, LASTS_S[TOP], seed)) for seed in range(1, 2 if reduced else 1 + SEEDS)]
        made[name] = fmean(one.output_tokens_per_s for one in top)
        p90_s[name] = stage(arm, questions(MIDDLE, LASTS_S[MIDDLE], seed=1)).ttft_p90_s
    return lines(made, p90_s)


def lines(made: Mapping[str, float], p90_s: Mapping[str, float | None]) -> list[Line]:
    published = {"precise": ("10,497", "0.5"), "approximate": ("7,248", "2.5"), "load-only": ("4,745", "88")}
    return [
        Line("output tokens/s at 60 /s, precise : load-only", "2.21", ratio(made["precise"], made["load-only"]), 1.9,
             unit="x"),
        order("p90 TTFT: precise < approximate < load-only", *p90_s.values()),
        Line("p90 TTFT, load-only : approximate", "35", ratio(p90_s["load-only"], p90_s["approximate"]), 5.0, unit="x"),
        *(Line(f"output tokens/s at 60 /s, {name}", published[name][0], made[name]) for name in made),
        *(Line(f"p90 TTFT at 10 /s (there 35 /s), {name}", published[name][1], p90_s[name], unit="s")
          for name in p90_s),
    ]  # fmt: skip


ROWS = (Row("groups", "llm-d 2025-09: 150 groups on 8 instances of 2 x H100", measure, 75, 30),)
