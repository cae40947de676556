"""`warmroute advise`: estimate what a bigger pool, more instances or better placement would gain, for a decision
log or trace.

The estimate needs no minutes of simulation: `router/lab/simulator/sizing.py` counts hits for all sizes in one pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from router.cli.terminal.options import written_path
from router.cli.workload import command as workloads


def advise(
    workload: workloads.WorkloadArgument,
    instances: Annotated[str, typer.Option("--instances", "-n", help="fleet sizes")] = "1,2,4,8,16",
    pool_gb: Annotated[
        str | None, typer.Option(help="pool sizes in GB, as 0,200,400  [default: up to all different blocks]")
    ] = None,
    pool_rate: Annotated[float, typer.Option(help="tokens per second from the pool to one instance")] = 150_000,
    profile: Annotated[str, typer.Option(help="model and GPUs of an instance: a name or a file")] = "qwen3-32b-2xh100",
    seed: workloads.SeedOption = 1,
    requests: workloads.RequestsOption = None,
    sessions: workloads.SessionsOption = None,
    scale: workloads.ScaleOption = 1.0,
    at_once: workloads.AtOnceOption = 64,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="folder for JSON and chart", callback=written_path("folder"))
    ] = None,
    chart: Annotated[bool, typer.Option(help="draw a chart into --out; needs matplotlib")] = True,
) -> None:
    """Estimate what more KV memory would bring.

    It lists hits and prefill time by pool size and number of instances. It is optimistic: requests do not queue, and
    running requests occupy no KV cache. `warmroute simulate` models both.
    """
    from router.cli.advise import report
    from router.cli.terminal.drawing import require
    from router.cli.terminal.output import readable_console, render, report_written, write_json
    from router.lab.simulator.scenario import LinkSpeed
    from router.lab.simulator.sizing import advise as estimate
    from router.lab.sweep import options
    from router.lab.workloads.model import ClosedLoopPace, lay_out

    if out is not None and chart:
        require()
    fleets = [options.parse_whole("--instances", one) for one in options.parse_list("--instances", instances)]
    link = LinkSpeed(options.parse_number("--pool-rate", str(pool_rate)))
    engine = options.load_profile(profile)
    pools = [round(gb * 1e9 / engine.kv_bytes_per_token) for gb in report.parse_sizes_gb(pool_gb)]
    requested = workloads.read(workload, seed, requests=requests, sessions=sessions, tokens=scale)
    console = readable_console()
    with report.counting(console, requested.turns) as counted:
        advice = estimate(counted(lay_out(requested, ClosedLoopPace(at_once))), engine, fleets, pools, link, seed)
    found = report.AdviceReport(workload, engine, link, advice, whole_ladder=pool_gb is not None)
    console.print(found.title(), markup=False, soft_wrap=True)
    for grid in found.grids():
        console.print(render(grid))
    console.print("\n".join(found.sentences()), soft_wrap=True, markup=False)
    if out is None:
        return
    write_json(console, out / "advice.json", found.as_json())
    if chart:
        report.draw(found, out / "advice.png")
        report_written(console, out / "advice.png")
