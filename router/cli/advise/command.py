"""`warmroute advise`: what a bigger pool, more instances or better placement would bring, from a decision log or a
trace.

Minutes of simulation are not needed for that: `router/testbed/simulator/sizing.py` counts hits for all sizes in one
pass.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from router.cli.workload.command import (
    AtOnceOption,
    GivenArgument,
    RequestsOption,
    ScaleOption,
    SeedOption,
    SessionsOption,
    read,
)


def advise(
    given: GivenArgument,
    instances: Annotated[str, typer.Option("--instances", "-n", help="sizes of the fleet")] = "1,2,4,8,16",
    pool_gb: Annotated[
        str | None, typer.Option(help="sizes of the pool, as 0,200,400  [default: up to all that was ever asked]")
    ] = None,
    pool_rate: Annotated[float, typer.Option(help="tokens per second that the pool hands to one instance")] = 150_000,
    profile: Annotated[str, typer.Option(help="model and GPUs of an instance: a name or a file")] = "qwen3-32b-2xh100",
    seed: SeedOption = 1,
    requests: RequestsOption = None,
    sessions: SessionsOption = None,
    scale: ScaleOption = 1.0,
    at_once: AtOnceOption = 64,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="folder for JSON and chart", file_okay=False)] = None,
    chart: Annotated[bool, typer.Option(help="draw the chart into it; it needs matplotlib")] = True,
) -> None:
    """Say what more KV memory would bring: hits and prefill time by pool size and number of instances.

    An estimate on the bright side: nobody waits, and running requests take no room. `warmroute simulate` knows better.
    """
    from router.cli.advise import report
    from router.cli.terminal.drawing import require
    from router.cli.terminal.output import readable_console, write_json
    from router.testbed.simulator.scenario import LinkSpeed
    from router.testbed.simulator.sizing import advise as advise_on
    from router.testbed.sweep import option_values, profiles
    from router.testbed.workloads.timeline import ClosedLoopPace, lay_out

    if out is not None and chart:
        require()
    fleets = [
        option_values.parse_whole("--instances", part) for part in option_values.parse_list("--instances", instances)
    ]
    link = LinkSpeed(option_values.parse_number("--pool-rate", str(pool_rate)))
    chosen = profiles.load(profile)
    sizes = report.sizes_gb(pool_gb)
    pools = [round(gb * 1e9 / chosen.kv_bytes_per_token) for gb in sizes]
    workload = read(given, seed, requests=requests, sessions=sessions, tokens=scale)
    console = readable_console()
    with report.progress(console, workload.turns) as counted:
        found = advise_on(counted(lay_out(workload, ClosedLoopPace(at_once))), chosen, fleets, pools, link, seed)
    told = report.AdviceReport(given, chosen, link, found, whole_ladder=pool_gb is not None)
    console.print(told.title(), markup=False, soft_wrap=True)
    for table in told.tables():
        console.print(table)
    console.print("\n".join(told.sentences()), soft_wrap=True, markup=False)
    if out is None:
        return
    write_json(console, out / "advice.json", told.as_json())
    if chart:
        from router.cli.advise.chart import draw

        draw(told, out / "advice.png")
        console.print(f"written: {out / 'advice.png'}", soft_wrap=True, markup=False)
