"""The options of `warmroute simulate`, from the command line to `SweepSpec` and `SweepOutput`.

Modules are imported when the command runs, so that `--help` answers at once. The options of a `SweepSpec` have
the names of its fields, so that the command passes them on by name.
"""

from __future__ import annotations

import shlex
import sys
from dataclasses import fields
from pathlib import Path

from typer import Option

from router.cli.terminal.options import read_path, written_path

OPEN, CLOSED = "open loop: ", "closed loop: "
MEMORY = "off or TOKENS_PER_S[:TOKENS] of "
SERVED = " of a request that is served well"


def simulate(
    policies: list[str] = Option(
        ["warm", "least_requests", "round_robin"], "--policy", "-p", help="name, file or `all`"
    ),
    policies_dir: Path | None = Option(None, help="folder in which names are looked up", callback=read_path("folder")),
    workload: str = Option(
        "codex", "--workload", "-w", help="codex, claude, scaling, groups, tools, or a trace or decision log"
    ),
    requests: int | None = Option(None, min=1, help=OPEN + "number of requests"),
    sessions: int | None = Option(None, min=1, help=CLOSED + "number of sessions in all"),
    scale: float = Option(1.0, help="factor on all lengths of a preset"),
    think: float = Option(1.0, help="factor on all pauses of a closed loop"),
    instances: str = Option("8", "--instances", "-n", help="fleet sizes, as 4,8,32"),
    prefills: int = Option(0, min=0, help="instances that only prefill; the others only decode"),
    profile: str = Option("qwen3-32b-2xh100", help="model and GPUs of an instance: a name or a file"),
    kv_tokens: int | None = Option(None, min=1, help="KV tokens of an instance, instead of the profile's"),
    pool: str = Option("off", help=MEMORY + "a shared pool, as off,150000"),
    host_memory: str = Option("off", help=MEMORY + "each instance's host memory, as off,150000"),
    rate: str | None = Option(None, help=OPEN + "requests per second, as 4,8  [default: a file's recorded times]"),
    rho: str | None = Option(
        None, help=OPEN + "load, where 1 is the fleet's capacity without caches  [default: 0.9 of a preset]"
    ),
    sessions_per_instance: str | None = Option(None, help=CLOSED + "concurrent sessions, as 8,16,24  [default: 8]"),
    staggered: bool = Option(True, "--staggered/--in-step", help=CLOSED + "first sessions begin at a random turn"),
    admission: bool = Option(False, "--admission", help="new sessions wait until the caches have room"),
    lags: str = Option("50:250", help="ms from a cached block to the index, and between two polls"),
    routers: str = Option("1", help="numbers of routers in front of the fleet, as 1,2,4"),
    exchange: str = Option("1", help="what several routers exchange: off or DELAY_MS[:LOST_PERCENT], as off,1"),
    sticky: bool = Option(False, "--sticky", help="a session's requests come to one router, else to any"),
    trouble: str = Option("off", help="off, or names or files of faults, as off,slow,dies"),
    seeds: int = Option(1, min=1, help="runs of each cell, each with its own seed"),
    first_seed: int = Option(1, min=0, help="seed of the first run; the others count up from it"),
    warmup_s: float = Option(0.0, "--warmup", min=0, help="virtual seconds at the start that are not measured"),
    until_s: float | None = Option(None, "--until", min=0, help="virtual seconds after which no request is sent"),
    ttft_limit_s: float = Option(2.0, "--ttft-limit", min=0, help="seconds to the first token" + SERVED),
    tpot_limit_s: float = Option(0.1, "--tpot-limit", min=0, help="seconds per later token" + SERVED),
    find_capacity: bool = Option(False, "--find-capacity", help="search for the highest load served well, per policy"),
    share: float = Option(0.9, min=0, max=1, help="share of requests within both limits that counts as served well"),
    speed: bool = Option(False, "--speed", help="only measure how many decisions a second a policy makes"),
    jobs: int | None = Option(None, "--jobs", "-j", min=1, help="processes  [default: one per core]"),
    out: Path | None = Option(
        None, "--out", "-o", help="folder for JSON, charts and HTML page", callback=written_path("folder")
    ),
    json: bool = Option(False, "--json", help="print JSON instead of tables"),
    chart: bool = Option(True, help="draw charts; needs matplotlib"),
) -> None:
    """Compare policies on a fleet in virtual time. The router's own code decides; engines are by a profile, the
    workload by a preset or a trace. The same options give the same results, to the byte.
    """
    options = dict(locals())
    from router.cli.simulate.command import SweepOutput
    from router.cli.simulate.command import simulate as simulate_cells
    from router.cli.simulate.speed import measure as measure_speeds
    from router.lab.sweep.spec import SweepSpec

    spec = SweepSpec(**{field.name: options[field.name] for field in fields(SweepSpec)})
    if speed:
        measure_speeds(spec)
        return
    command_line = shlex.join(["warmroute", *sys.argv[1:]])
    if not simulate_cells(spec, SweepOutput(find_capacity, share, jobs, out, json, chart, command_line)):
        sys.exit(130)  # as a shell does for Ctrl-C
