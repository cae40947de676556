"""vLLM x Mooncake (2026-05): coding agents on Kimi K2.5 (NVFP4) and GB200, prefill/decode with and without a pool.

Published, `codex` on 12 GPUs (one prefill instance TP4, one decode instance DP8 + EP), the pool against KV transfer
alone: throughput 3.8x, P50 TTFT 46x, end to end 8.6x less, hits 1.7 -> 92.2 %. `scaling`, 12 to 60 GPUs in steps of 12
with 75 sessions each, round robin: hits above 95 %, throughput nearly linear.

Known: model, GPUs, split, workloads, the sessions of `scaling`. Not: how many agents at once in the first experiment,
bandwidth to the pool, its size, any latency in seconds. 1.7 % is the shared system prompt alone, so the baseline's
prefill instance kept nothing of its sessions, although its own cache has room for some: that is taken over, its cache
holds little more than a prompt.

What the ratios say of the seconds: N agents in a loop have N / throughput = pause + end to end. The preset's pause is
10.5 s in the mean; with 3.8 times the throughput and 8.6 times less end to end, that takes 6.1 s with the pool, and
TTFT (46 times less) 1.0 s. Computing a turn's new tokens (0.1 s), loading its context (0.04 s) and handing it over
(0.04 s) are a fifth of that; the rest goes to software, as two servers that each read and tokenise the prompt, the
pool's lookup, descriptors of some 47,000 pieces of KV: `SOFTWARE_MS` of each request, with and without the pool.

Mapping: 9 instances, one prefills (`kimi-gb200-tp4`) and 8 decode (`kimi-gb200-dp1`: the ranks are placed one by one).
Pool: 1 TB of DRAM per node of four GPUs, 38 KB a token; 1.3 million tokens/s (four 100 Gbps links) to an instance, from
pool and prefill instance alike. Baseline: the prefill instance's cache is cut to 210,000 tokens, the longest prompt.
`codex`: decode steps read the weights of as few experts as some 15 answers at once use, not 120 as in the profile.

Fitted: the agents at once (`AGENTS`), on which the throughput hangs most. The software's 0.8 s are derived from the
very ratios that are compared, so P50 TTFT and end to end are no independent test; with 10 ms and 50 agents P50 TTFT was
0.28 s with the pool, and the ratio 183.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from router.lab.engine_profile import EngineProfile
from router.lab.simulator.outcome import SimulationFigures
from router.lab.simulator.scenario import LinkSpeed, Scenario, StoreScenario
from router.lab.sweep import options
from router.lab.workloads import source
from tests.agreement.row import Line, Row, factor, ratio
from tests.agreement.served import figures_of
from tests.agreement.windows import Window

AGENTS, SESSIONS, NODES_PER_UNIT, RANKS = 40, 75, 3, 8
SOFTWARE_MS = 800.0
FEW_WEIGHTS_MS = 6.4  # 27 % of 71 GB of experts and 16 GB of the rest at 70 % of 8 TB/s
NODE_TOKENS = 1_000_000_000_000 // 38_000
LINK = LinkSpeed(1_300_000.0)
BARE_TOKENS = 210_000
BLOCK = 128  # 512 would cut a third off the shared system prompt of 840 tokens
WHY = "how many agents, and what a request takes beside computing and loading, is not published; both are fitted"


def scenario(units: int, *, pooled: bool, decodes: EngineProfile | None = None) -> Scenario:
    prefills = options.load_profile("kimi-gb200-tp4")
    return Scenario(
        profile=prefills if pooled else replace(prefills, kv_tokens=BARE_TOKENS),
        decode_profile=decodes or options.load_profile("kimi-gb200-dp1"),
        instances=units * (1 + RANKS),
        prefills=units,
        block_tokens=BLOCK,
        store=StoreScenario(units * NODES_PER_UNIT * NODE_TOKENS, LINK) if pooled else None,
        handover=replace(LINK, base_ms=SOFTWARE_MS),
    )


def few_agents(pooled: bool) -> Scenario:
    decodes = replace(options.load_profile("kimi-gb200-dp1"), weights_ms=FEW_WEIGHTS_MS)
    return scenario(1, pooled=pooled, decodes=decodes)


def figures(served_by: Scenario, preset: str, at_once: int, window: Window) -> SimulationFigures:
    agents = source.load_workload(preset, seed=1, sessions=4 * at_once)
    return figures_of(served_by, "round_robin", agents, at_once, window)


def codex(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    window = Window(300.0, 800.0 if reduced else 1800.0)
    say("with transfer only")
    bare = figures(few_agents(pooled=False), "codex", AGENTS, window)
    say("with the pool")
    pooled = figures(few_agents(pooled=True), "codex", AGENTS, window)
    bare_hit, pool_hit = (100 * (one.hit_share or 0) for one in (bare, pooled))
    return [
        factor("throughput, pool : transfer only", 3.8, ratio(pooled.requests_per_s, bare.requests_per_s), 1.5, WHY,
               "x"),
        factor("p50 TTFT, transfer only : pool", 46, ratio(bare.ttft_p50_s, pooled.ttft_p50_s), 1.5, WHY, "x"),
        factor("p50 end to end, transfer only : pool", 8.6, ratio(bare.duration_p50_s, pooled.duration_p50_s), 1.5, WHY,
               "x"),
        factor("hits, transfer only", 1.7, bare_hit, 1.5, "what a prefill instance evicts hangs on its cache", "%"),
        factor("hits, pool", 92.2, pool_hit, 1.5, unit="%"),
        Line("p50 TTFT, pool", "about 1: derived", pooled.ttft_p50_s, unit="s"),
        Line("p50 end to end, pool", "about 6: derived", pooled.duration_p50_s, unit="s"),
    ]  # fmt: skip


def scaling(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    window = Window(200.0, 400.0 if reduced else 900.0)
    lines, per_unit = [], 0.0
    for units in (1, 3) if reduced else (1, 2, 3, 4, 5):
        say(f"{12 * units} GPUs")
        seen = figures(scenario(units, pooled=True), "scaling", units * SESSIONS, window)
        hits = 100 * (seen.hit_share or 0)
        lines.append(Line(f"hits, {12 * units} GPUs", "> 95", hits, 95.0, unit="%"))
        if units == 1:
            per_unit = seen.output_tokens_per_s
        else:
            share = ratio(seen.output_tokens_per_s, units * per_unit)
            lines.append(Line(f"throughput, {12 * units} GPUs : {units} x 12 GPUs", "nearly 1", share, 0.9, unit="x"))
    return lines


ROWS = (
    Row("agents", "vLLM x Mooncake 2026: codex, 12 GB200, pool : transfer only", codex, 40, 15),
    Row("scaling", "vLLM x Mooncake 2026: 12 to 60 GB200, round robin and pool", scaling, 120, 25),
)
