"""The options of `warmroute simulate`, from the command line to `SweepSpec` and `SweepOutput`.

Modules are imported when the command runs, so that `--help` answers at once. The options of a `SweepSpec` carry the
names of its fields, so that the command passes them on by name.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

INTERRUPTED = 130  # exit code of a shell for Ctrl-C


def _option(*names: str, **settings: Any) -> Any:
    """Return an option; `text` is its help text."""
    return typer.Option(*names, help=settings.pop("text"), **settings)


Policies = Annotated[
    list[str] | None,
    _option("--policy", "-p", text="a name, a file or `all`; several  [default: warm, least_requests, round_robin]"),
]
PoliciesDir = Annotated[Path | None, _option(text="folder in which names are looked up", exists=True, file_okay=False)]
WorkloadName = Annotated[
    str, _option("--workload", "-w", text="codex, scaling, groups, tools, or a trace or decision log")
]
Requests = Annotated[int | None, _option(text="open loop: number of requests", min=1)]
Sessions = Annotated[int | None, _option(text="closed loop: number of sessions in all", min=1)]
Scale = Annotated[float, _option(text="factor on all lengths of a preset")]
Think = Annotated[float, _option(text="factor on all pauses of a closed loop")]
Instances = Annotated[str, _option("--instances", "-n", text="fleet sizes, as 4,8,32")]
Prefills = Annotated[int, _option(text="instances that only prefill; the others only decode", min=0)]
Profile = Annotated[str, _option(text="model and GPUs of an instance: a name or a file")]
KvTokens = Annotated[int | None, _option(text="KV tokens of an instance, instead of the profile's", min=1)]
Pool = Annotated[str, _option(text="off or TOKENS_PER_S[:TOKENS] of a shared pool, as off,150000")]
HostMemory = Annotated[str, _option(text="off or TOKENS_PER_S[:TOKENS] of each instance's host memory, as off,150000")]
Rate = Annotated[str | None, _option(text="open loop: requests per second, as 4,8")]
Rho = Annotated[
    str | None, _option(text="open loop: load, where 1 is the fleet's capacity without caches  [default: 0.9]")
]
SessionsPerInstance = Annotated[
    str | None, _option(text="closed loop: concurrent sessions per instance, as 8,16,24  [default: 8]")
]
Staggered = Annotated[
    bool, _option("--staggered/--in-step", text="closed loop: first sessions begin at a random turn, or at the first")
]
Admission = Annotated[bool, _option("--admission", text="new sessions wait until the caches have room")]
Lags = Annotated[str, _option(text="ms from a cached block to the index, and between two polls")]
Routers = Annotated[int, _option(text="routers that share the fleet, each with its share of the requests", min=1)]
TroubleNames = Annotated[str, _option("--trouble", text="off, or names or files of faults, as off,slow,dies")]
Seeds = Annotated[int, _option(text="runs of each cell, each with its own seed", min=1)]
FirstSeed = Annotated[int, _option(text="seed of the first run; the others count up from it", min=0)]
Warmup = Annotated[float, _option("--warmup", text="virtual seconds at the beginning that are not measured", min=0)]
Until = Annotated[float | None, _option("--until", text="virtual seconds after which no request is sent", min=0)]
TtftLimit = Annotated[float, _option("--ttft-limit", text="seconds to the first token of a well-served request", min=0)]
TpotLimit = Annotated[float, _option("--tpot-limit", text="seconds per later token of a well-served request", min=0)]
FindCapacity = Annotated[
    bool, _option("--find-capacity", text="search for the highest load that is served well, per policy")
]
Share = Annotated[float, _option(text="share of requests within both limits that counts as served well", min=0, max=1)]
Speed = Annotated[bool, _option("--speed", text="only measure how many decisions a second a policy makes")]
Jobs = Annotated[int | None, _option("--jobs", "-j", text="processes  [default: one per core]", min=1)]
Out = Annotated[Path | None, _option("--out", "-o", text="folder for JSON, charts and HTML page", file_okay=False)]
Json = Annotated[bool, _option("--json", text="print JSON instead of tables")]
Chart = Annotated[bool, _option(text="draw charts; needs matplotlib")]


def simulate(
    policies: Policies = None,
    policies_dir: PoliciesDir = None,
    workload: WorkloadName = "codex",
    requests: Requests = None,
    sessions: Sessions = None,
    scale: Scale = 1.0,
    think: Think = 1.0,
    instances: Instances = "8",
    prefills: Prefills = 0,
    profile: Profile = "qwen3-32b-2xh100",
    kv_tokens: KvTokens = None,
    pool: Pool = "off",
    host_memory: HostMemory = "off",
    rate: Rate = None,
    rho: Rho = None,
    sessions_per_instance: SessionsPerInstance = None,
    staggered: Staggered = True,
    admission: Admission = False,
    lags: Lags = "50:250",
    routers: Routers = 1,
    trouble: TroubleNames = "off",
    seeds: Seeds = 1,
    first_seed: FirstSeed = 1,
    warmup_s: Warmup = 0.0,
    until_s: Until = None,
    ttft_limit_s: TtftLimit = 2.0,
    tpot_limit_s: TpotLimit = 0.1,
    find_capacity: FindCapacity = False,
    share: Share = 0.9,
    speed: Speed = False,
    jobs: Jobs = None,
    out: Out = None,
    json: Json = False,
    chart: Chart = True,
) -> None:
    """Compare policies on a fleet in virtual time: the router's own code, engines by a profile, a workload by a preset
    or a trace. The same options give the same results, to the byte."""
    options = dict(locals())
    from router.cli.simulate.command import SweepOutput
    from router.cli.simulate.command import simulate as simulate_cells
    from router.cli.simulate.speed import measure as measure_speeds
    from router.testbed.sweep.spec import POLICIES, SweepSpec

    chosen = {field.name: options[field.name] for field in fields(SweepSpec)}
    spec = SweepSpec(**chosen | {"policies": policies or POLICIES})
    if speed:
        measure_speeds(spec)
        return
    command_line = shlex.join(["warmroute", *sys.argv[1:]])
    if not simulate_cells(spec, SweepOutput(share if find_capacity else None, jobs, out, json, chart, command_line)):
        sys.exit(INTERRUPTED)
