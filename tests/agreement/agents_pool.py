"""vLLM x Mooncake (2026-05): coding agents on Kimi K2.5 (NVFP4) and GB200, prefill/decode with and without a pool.

Published, `codex` on 12 GPUs (one prefill instance TP4, one decode instance DP8 + EP), the pool against KV transfer
alone: throughput 3.8x, P50 TTFT 46x, end to end 8.6x less, hits 1.7 -> 92.2 %. `scaling`, 12 to 60 GPUs in steps of 12
with 75 sessions each, round robin: hits above 95 %, throughput nearly linear.

Known: model, GPUs, split, workloads, the sessions of `scaling`. Not: how many agents at once in the first experiment,
bandwidth to the pool, its size. 1.7 % is the shared system prompt alone, so the baseline's prefill instance kept
nothing of its sessions, although its own cache has room for some: that is taken over, its cache holds little more than
a prompt.

Mapping: 9 instances, one prefills (`kimi-gb200-tp4`) and 8 decode (`kimi-gb200-dp1`: the ranks are placed one by one).
Pool: 1 TB of DRAM per node of four GPUs, 38 KB a token; 1.3 million tokens/s to an instance (four 100 Gbps links).
Baseline: the prefill instance's cache is cut to 210,000 tokens, the longest prompt. `codex`: 50 agents at once, on
which the gain in throughput hangs most (75, as in `scaling`, gave 5.6x): it is fitted, the latencies follow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from router.sim.outcome import Figures
from router.sim.scenario import Link, Scenario, Store
from router.simulate import profiles, workload
from tests.agreement.row import Line, Row, factor, ratio
from tests.agreement.served import figures_of
from tests.agreement.windows import Window

AGENTS, SESSIONS, NODES_PER_UNIT, RANKS = 50, 75, 3, 8
NODE_TOKENS = 1_000_000_000_000 // 38_000
LINK = Link(1_300_000.0)
BARE_TOKENS = 210_000
BLOCK = 128  # 512 would cut a third off the shared system prompt of 840 tokens
WHY = "the way to the pool is not published; here looking up and loading take less than there"


def scenario(units: int, *, pooled: bool) -> Scenario:
    prefills = profiles.load("kimi-gb200-tp4")
    return Scenario(
        profile=prefills if pooled else replace(prefills, kv_tokens=BARE_TOKENS),
        decode_profile=profiles.load("kimi-gb200-dp1"),
        instances=units * (1 + RANKS),
        prefills=units,
        block_tokens=BLOCK,
        store=Store(units * NODES_PER_UNIT * NODE_TOKENS, LINK) if pooled else None,
    )


def figures(units: int, preset: str, at_once: int, window: Window, *, pooled: bool) -> Figures:
    agents = workload.load(preset, seed=1, sessions=4 * at_once)
    return figures_of(scenario(units, pooled=pooled), "round_robin", agents, at_once, window)


def codex(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    window = Window(400.0, 1000.0 if reduced else 2200.0)
    say("with transfer only")
    bare = figures(1, "codex", AGENTS, window, pooled=False)
    say("with the pool")
    pooled = figures(1, "codex", AGENTS, window, pooled=True)
    bare_hit, pool_hit = (100 * (one.hit_share or 0) for one in (bare, pooled))
    return [
        factor("throughput, pool : transfer only", 3.8, ratio(pooled.requests_per_s, bare.requests_per_s), 1.5, WHY,
               "x"),
        factor("p50 TTFT, transfer only : pool", 46, ratio(bare.ttft_p50_s, pooled.ttft_p50_s), 1.5, WHY, "x"),
        factor("p50 end to end, transfer only : pool", 8.6, ratio(bare.duration_p50_s, pooled.duration_p50_s), 1.5, WHY,
               "x"),
        factor("hits, transfer only", 1.7, bare_hit, 1.5, "what a prefill instance evicts hangs on its cache", "%"),
        factor("hits, pool", 92.2, pool_hit, 1.5, unit="%"),
        Line("p50 TTFT, pool", "not published", pooled.ttft_p50_s, unit="s"),
    ]  # fmt: skip


def scaling(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    window = Window(200.0, 400.0 if reduced else 900.0)
    lines, per_unit = [], 0.0
    for units in (1, 3) if reduced else (1, 2, 3, 4, 5):
        say(f"{12 * units} GPUs")
        seen = figures(units, "scaling", units * SESSIONS, window, pooled=True)
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
