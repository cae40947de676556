"""NVIDIA Dynamo's own offline replay of the conversation trace, beside ours: same trace, same engines, 8 workers.

`run_mocker_trace_replay` of ai-dynamo-runtime runs their router in front of their simulated engines, in virtual time.
Their engine's clock (aisimulate, "polynomial"), in ms, t new tokens of a step and u the share of the KV cache in use:

    prefill   16.5 + 0.01518 t + 4.21e-7 t^2        decode   5.74 + 54.01 u - 25.74 u^2

Mapping: a `EngineProfile` as near to that as its form allows. The square term is taken at a full step of 8,192 tokens
and made linear (0.00345 t): it knows no cached context, as attention in our profiles does. Decode: 5.74 ms per step
and the slope at an empty cache, 51.5 ns per context token of 1,048,576. The prefill's own 16.5 ms per step are left
out beyond these 5.74. Theirs adds a step's prefill and decode up, ours takes the greater. Blocks of 512 tokens in
both, 2,048 per worker. Their router hears of blocks at once: so does ours here. "Their cost": our `dynamo_cost`,
always the cheapest, as is their default.
"""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from router.config.sections.base import PluginConfig
from router.errors import WarmrouteError
from router.lab.engine_profile import EngineProfile
from router.lab.simulator.outcome import SimulationFigures
from router.lab.simulator.scenario import EventLags, Scenario
from tests.agreement import trace
from tests.agreement.row import Line, Row, order
from tests.agreement.served import figures_of, part_of_it, policy
from tests.bench.routers import peers_venv

WORKERS, BLOCK, BLOCKS, SECONDS = 8, 512, 2048, 600.0
SETTINGS = {"block_size": BLOCK, "num_gpu_blocks": BLOCKS, "max_num_batched_tokens": 8192, "max_num_seqs": 256}
POINTS = 3.0
WHY = "their router breaks ties and books loads otherwise"

PROFILE = EngineProfile(
    name="dynamo-mocker",
    kv_tokens=BLOCK * BLOCKS,
    kv_bytes_per_token=1.0,
    us_per_token=15.18 + 3.45,
    ns_per_pair=0.0,
    us_per_decode=0.0,
    weights_ms=0.0,
    ns_per_context_token=51.5,
    step_ms=5.74,
)


def theirs(requests: int | None) -> list[dict[str, float]]:
    """Round robin, then by their cost. `requests`: only the first. Raises NoTrace, InstallFailed, WarmrouteError."""
    with TemporaryDirectory(prefix="warmroute-dynamo-") as folder:
        plain = Path(folder) / "trace.jsonl"
        lines = gzip.decompress(trace.conversation().read_bytes()).splitlines(keepends=True)
        plain.write_bytes(b"".join(lines[:requests]))
        script = Path(__file__).with_name("dynamo_peer.py")
        command = [str(peers_venv() / "bin" / "python"), str(script), str(plain), str(WORKERS), json.dumps(SETTINGS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, env={"DYN_LOG": "error"})
    if done.returncode:
        raise WarmrouteError(f"Dynamo's replay failed: {done.stderr.strip()[-300:]}")
    reports: list[dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return reports


def ours(served: Any, arm: str) -> SimulationFigures:
    chosen = policy(arm)
    if arm == "dynamo_cost":
        chosen = chosen.model_copy(update={"picker": PluginConfig(name="best")})
    scenario = Scenario(profile=PROFILE, instances=WORKERS, block_tokens=BLOCK, lags=EventLags(events_s=0.0))
    return figures_of(scenario, chosen, served)


def measure(reduced: bool, say: Callable[[str], None]) -> list[Line]:
    requests = 3000 if reduced else None
    say("Dynamo's replay")
    rounds, cost = theirs(requests)
    served = part_of_it(reduced, 3000)
    say("ours")
    our_rounds, our_cost = ours(served, "round_robin"), ours(served, "dynamo_cost")
    lines = []
    for name, report, seen in (("round robin", rounds, our_rounds), ("their cost", cost, our_cost)):
        reused, hit = 100 * report["prefix_cache_reused_ratio"], 100 * (seen.hit_share or 0)
        lines.append(Line(f"prefix reuse, {name}", f"{reused:.1f}", hit, reused - POINTS, reused + POINTS, WHY, "%"))
    for name, report, seen in (("round robin", rounds, our_rounds), ("their cost", cost, our_cost)):
        mean_ms = None if seen.ttft_mean_s is None else 1e3 * seen.ttft_mean_s
        lines.append(Line(f"mean TTFT, {name}", f"{report['mean_ttft_ms']:.0f}", mean_ms, unit="ms"))
    theirs_say = "yes" if cost["mean_ttft_ms"] < rounds["mean_ttft_ms"] else "no"
    same = order("mean TTFT: their cost < round robin", our_cost.ttft_mean_s, our_rounds.ttft_mean_s)
    want = float(theirs_say == "yes")
    return [*lines, Line(same.what, theirs_say, same.ours, want, want, unit=same.unit)]


ROWS = (Row("dynamo", "Dynamo's own offline replay: conversation, 8 workers", measure, 45, 20),)
