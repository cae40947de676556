"""The options of `warmroute simulate`, from the command line to `SweepSpec` and `SweepOutput`.

Rooms are imported when the command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

INTERRUPTED = 130  # as a shell has it for Ctrl-C


def simulate(
    policy: Annotated[
        list[str] | None,
        typer.Option(
            "--policy", "-p", help="a name, a file or `all`; several  [default: warm, least_requests, round_robin]"
        ),
    ] = None,
    policies_dir: Annotated[
        Path | None, typer.Option(help="where names are looked up", exists=True, file_okay=False)
    ] = None,
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="codex, scaling, groups, tools, or a trace or ledger")
    ] = "codex",
    requests: Annotated[int | None, typer.Option(min=1, help="open loop: so many requests")] = None,
    sessions: Annotated[int | None, typer.Option(min=1, help="closed loop: so many sessions in all")] = None,
    scale: Annotated[float, typer.Option(help="factor on all lengths of a preset")] = 1.0,
    think: Annotated[float, typer.Option(help="factor on all pauses of a closed loop")] = 1.0,
    instances: Annotated[str, typer.Option("--instances", "-n", help="sizes of the fleet, as 4,8,32")] = "8",
    prefills: Annotated[int, typer.Option(min=0, help="of them, how many only prefill; the others decode")] = 0,
    profile: Annotated[str, typer.Option(help="model and GPUs of an instance: a name or a file")] = "qwen3-32b-2xh100",
    kv_tokens: Annotated[int | None, typer.Option(min=1, help="KV tokens of an instance, not the profile's")] = None,
    pool: Annotated[str, typer.Option(help="off or TOKENS_PER_S[:TOKENS] of a shared pool, as off,150000")] = "off",
    host_memory: Annotated[
        str, typer.Option(help="off or TOKENS_PER_S[:TOKENS] of each instance's host memory, as off,150000")
    ] = "off",
    rate: Annotated[str | None, typer.Option(help="open loop: requests per second, as 4,8")] = None,
    rho: Annotated[
        str | None, typer.Option(help="open loop: load, 1 is what the fleet could do without caches  [default: 0.9]")
    ] = None,
    sessions_per_instance: Annotated[
        str | None, typer.Option(help="closed loop: sessions at work at once, as 8,16,24  [default: 8]")
    ] = None,
    staggered: Annotated[
        bool, typer.Option("--staggered/--in-step", help="closed loop: first sessions begin anywhere in their course")
    ] = True,
    admission: Annotated[
        bool, typer.Option("--admission", help="new sessions wait until the caches have room")
    ] = False,
    lags: Annotated[str, typer.Option(help="ms from a block to the index, and between two polls")] = "50:250",
    routers: Annotated[int, typer.Option(min=1, help="that share the fleet, each with its share of requests")] = 1,
    trouble: Annotated[str, typer.Option(help="off, or what goes wrong: a name or a file, as off,slow,dies")] = "off",
    seeds: Annotated[int, typer.Option(min=1, help="runs of each cell, from one seed each")] = 1,
    first_seed: Annotated[int, typer.Option(min=0, help="the others follow it")] = 1,
    warmup: Annotated[float, typer.Option(min=0, help="virtual seconds of which nothing is counted")] = 0.0,
    until: Annotated[float | None, typer.Option(min=0, help="virtual seconds after which nothing is sent")] = None,
    ttft_limit: Annotated[float, typer.Option(min=0, help="seconds to the first token, to be served well")] = 2.0,
    tpot_limit: Annotated[float, typer.Option(min=0, help="seconds per token after it, to be served well")] = 0.1,
    find_capacity: Annotated[
        bool, typer.Option("--find-capacity", help="search the highest load that is served well, per policy")
    ] = False,
    share: Annotated[float, typer.Option(min=0, max=1, help="of requests within both limits: a capacity")] = 0.9,
    speed: Annotated[
        bool, typer.Option("--speed", help="only measure how many decisions a second a policy makes")
    ] = False,
    jobs: Annotated[int | None, typer.Option("--jobs", "-j", min=1, help="processes  [default: one per core]")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder for JSON, charts, a page", file_okay=False)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
    chart: Annotated[bool, typer.Option(help="draw charts; they need matplotlib")] = True,
) -> None:
    """Compare policies on a fleet in virtual time: the router's own code, engines by a profile, a workload by a preset
    or a trace. The same question has the same answer, to the byte."""
    from router.cli.simulate.command import SweepOutput
    from router.cli.simulate.command import simulate as simulate_cells
    from router.cli.simulate.speed import measure as measure_speeds
    from router.testbed.sweep.spec import POLICIES, SweepSpec

    asked = SweepSpec(
        policies=policy or POLICIES,
        policies_dir=policies_dir,
        workload=workload,
        requests=requests,
        sessions=sessions,
        scale=scale,
        think=think,
        instances=instances,
        prefills=prefills,
        profile=profile,
        kv_tokens=kv_tokens,
        pool=pool,
        host_memory=host_memory,
        rate=rate,
        rho=rho,
        sessions_per_instance=sessions_per_instance,
        staggered=staggered,
        admission=admission,
        lags=lags,
        routers=routers,
        trouble=trouble,
        seeds=seeds,
        first_seed=first_seed,
        warmup_s=warmup,
        until_s=until,
        ttft_limit_s=ttft_limit,
        tpot_limit_s=tpot_limit,
    )
    if speed:
        measure_speeds(asked)
        return
    said = shlex.join(["warmroute", *sys.argv[1:]])
    wanted = SweepOutput(share if find_capacity else None, jobs, out, json, chart, said)
    if not simulate_cells(asked, wanted):
        sys.exit(INTERRUPTED)
