"""llm-d, "KV-Cache Wins You Can See" (2025-09): 150 groups with a shared context each, over 8 instances of 2 x H100.

Published: Qwen3-32B, 307,328 KV tokens per instance; 6,000 shared, 1,200 own tokens, answers of 1,000; Poisson, 3
rising to 60 requests/s. Over the whole ramp output tokens/s, p90 TTFT: precise 8,730, 0.54 s; approximate 6,944, 31 s;
load-only 4,429, 95 s; random 4,429, 93 s.

The shared contexts (0.9 million tokens) fill 37 % of all caches together and three times one instance: who spreads them
keeps a third in each.

Mapping: `groups` as it is. The ramp has two sides that are measured apart: output tokens/s at its top, where
everything queues, and p90 TTFT at 8 requests/s, about what "precise" answered over the whole ramp. Precise: llm-d's
default profile. Load-only: the same without its prefix scorer. Approximate: llm-d's own approximate scorer, which
believes what it once sent, is not among our policies; SGLang's tree of what was sent stands in for it. Blocks of 128
tokens instead of 16, for the simulator's speed.
"""

from __future__ import annotations

from collections.abc import Callable

from router.sim.scenario import Scenario
from router.simulate import profiles, workload
from tests.agreement.row import Line, Row, order, ratio
from tests.agreement.served import figures_of, policy
from tests.agreement.windows import Window

TOP, MIDDLE = 60.0, 8.0
APPROXIMATE = "sglang_threshold"


def scenario() -> Scenario:
    return Scenario(profile=profiles.load("qwen3-32b-2xh100"), instances=8, block_tokens=128)


def measure(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    precise = policy("llmd_weighted")
    blind = precise.model_copy(update={"scorers": [one for one in precise.scorers if one.name != "prefix_overlap"]})
    made, p90_s = {}, {}
    for name, arm in (("precise", precise), ("approximate", policy(APPROXIMATE)), ("load-only", blind)):
        say(name)
        window = Window(60.0, 180.0 if reduced else 360.0)
        served = workload.load("groups", seed=1, rate=TOP, requests=round(TOP * window.until_s))
        made[name] = figures_of(scenario(), arm, served, window=window).output_tokens_per_s
        window = Window(120.0, 300.0 if reduced else 900.0)
        served = workload.load("groups", seed=2, rate=MIDDLE, requests=round(MIDDLE * window.until_s))
        p90_s[name] = figures_of(scenario(), arm, served, window=window).ttft_p90_s
    gain = ratio(made["precise"], made["load-only"])
    return [
        Line("output tokens/s at saturation, precise : load-only", "1.97", gain, 1.9, unit="x"),
        order("p90 TTFT: precise < approximate < load-only", *p90_s.values()),
        Line("p90 TTFT, load-only : precise", "175", ratio(p90_s["load-only"], p90_s["precise"]), 5.0, unit="x"),
        Line("output tokens/s at saturation, precise", "8730 (ramp)", made["precise"], unit="tokens/s"),
        *(Line(f"p90 TTFT at {MIDDLE:g} requests/s, {name}", shown, p90_s[name], unit="s")
          for name, shown in (("precise", "0.54 (ramp)"), ("approximate", "31"), ("load-only", "95"))),
    ]  # fmt: skip


ROWS = (Row("groups", "llm-d 2025-09: 150 groups on 8 instances of 2 x H100", measure, 120, 60),)
