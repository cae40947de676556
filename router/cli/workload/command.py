"""`warmroute workload`: count a workload's statistics, or write it as a trace file.

Modules are imported when a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from router.cli.terminal.failures import error_console
from router.cli.terminal.options import written_path

if TYPE_CHECKING:
    from rich.console import Console

    from router.lab.workloads.model import Workload

workload = typer.Typer(name="workload", no_args_is_help=True, help="Count workloads, and write them as traces.")

WorkloadArgument = Annotated[
    str,
    typer.Argument(
        metavar="PRESET|FILE", help="codex, claude, scaling, groups, tools; a trace, a decision log or its folder"
    ),
]
SeedOption = Annotated[int, typer.Option(min=0, help="seed of a preset")]
RateOption = Annotated[float | None, typer.Option(help="open loop: mean requests per second")]
RequestsOption = Annotated[int | None, typer.Option(min=1, help="open loop: number of requests")]
SessionsOption = Annotated[int | None, typer.Option(min=1, help="closed loop: number of sessions")]
ScaleOption = Annotated[float, typer.Option(help="factor on all lengths of a preset")]
AtOnceOption = Annotated[int, typer.Option(min=1, help="closed loop: concurrent sessions; one ends, the next begins")]


@workload.command()
def stats(
    name: WorkloadArgument,
    seed: SeedOption = 1,
    rate: RateOption = None,
    requests: RequestsOption = None,
    sessions: SessionsOption = None,
    scale: ScaleOption = 1.0,
    block: Annotated[
        int | None, typer.Option(min=1, help="tokens of a cached block  [default: closed loop 16, open loop 512]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
) -> None:
    """Count a workload. It lists lengths, rate, the share that an infinite cache would hold, and how often blocks are
    reused.
    """
    import msgspec

    from router.cli.terminal.console import PrintableConsole
    from router.cli.terminal.output import render
    from router.cli.workload.table import as_json, make_table, statistics_of, title

    chosen = read(name, seed, rate=rate, requests=requests, sessions=sessions, tokens=scale)
    block_tokens = block or (16 if chosen.is_closed else 512)
    real, blocks = statistics_of(chosen, block_tokens)
    if json:
        report = as_json(name, seed, block_tokens, real, blocks)
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=1).decode() + "\n")
    else:
        console = PrintableConsole()
        console.print(title(name, chosen, block_tokens), markup=False, soft_wrap=True)
        console.print(render(make_table(name, chosen, real, blocks)))


@workload.command()
def write(
    name: WorkloadArgument,
    out: Annotated[
        Path, typer.Option("--out", "-o", help="the file to write: .jsonl or .jsonl.gz", callback=written_path("file"))
    ],
    seed: SeedOption = 1,
    rate: RateOption = None,
    requests: RequestsOption = None,
    sessions: SessionsOption = None,
    scale: ScaleOption = 1.0,
    at_once: AtOnceOption = 64,
    token_ms: Annotated[float, typer.Option(min=0, help="closed loop: assumed time per output token")] = 20.0,
) -> None:
    """Write a workload as a Mooncake trace, which is an open loop.

    The requests of a closed loop get times: --at-once sessions begin, each waits for its answers (--token-ms per
    token) and its pauses, and when one ends the next begins. A replay of the trace does not wait for answers, so it
    says little about agents on a fleet that is slower than assumed.
    """
    from router.lab.workloads.model import ClosedLoopPace
    from router.lab.workloads.traces import encode_mooncake, write_lines

    chosen = read(name, seed, rate=rate, requests=requests, sessions=sessions, tokens=scale)
    count = write_lines(out, encode_mooncake(chosen, ClosedLoopPace(at_once, token_ms / 1e3)))
    error_console().print(f"written: {out}: {count:,} requests", markup=False, soft_wrap=True)


def read(name: str, seed: int, **sizes: Any) -> Workload:
    """Return the workload as `load_workload` does; the first unusable lines of a file are printed to standard
    error.
    """
    from router.lab.workloads.source import load_workload

    unusable: list[str] = []
    try:
        return load_workload(name, seed=seed, on_unusable=unusable.append, **sizes)
    finally:
        print_unusable(error_console(), name, unusable)


def print_unusable(console: Console, name: str, lines: Sequence[str]) -> None:
    """Print the first of the `lines` of workload `name` that could not be used, and how many there are."""
    from router.lab.workloads.source import NAMED_LINES

    for line in lines[:NAMED_LINES]:
        console.print(line, markup=False, soft_wrap=True)
    if len(lines) > NAMED_LINES:
        console.print(f"{name}: {len(lines):,} lines in all were left out", markup=False, soft_wrap=True)
