"""`warmroute workload`: what a workload really has, beside what was published of it; and a workload as a trace file.

Rooms are imported when a command runs, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from router.testbed.workloads import Workload

workload = typer.Typer(name="workload", no_args_is_help=True, help="Look at workloads, and write them as traces.")

GivenArgument = Annotated[
    str,
    typer.Argument(metavar="PRESET|FILE", help="codex, scaling, groups, tools; a trace, a decision log or its folder"),
]
SeedOption = Annotated[int, typer.Option(min=0, help="of a preset")]
RateOption = Annotated[float | None, typer.Option(help="open loop: requests per second, in the mean")]
RequestsOption = Annotated[int | None, typer.Option(min=1, help="open loop: so many requests")]
SessionsOption = Annotated[int | None, typer.Option(min=1, help="closed loop: so many sessions")]
ScaleOption = Annotated[float, typer.Option(help="factor on all lengths of a preset")]
AtOnceOption = Annotated[int, typer.Option(min=1, help="closed loop: sessions at once, the next begins when one ends")]
err = Console(stderr=True, highlight=False)


@workload.command()
def stats(
    given: GivenArgument,
    seed: SeedOption = 1,
    rate: RateOption = None,
    requests: RequestsOption = None,
    sessions: SessionsOption = None,
    scale: ScaleOption = 1.0,
    block: Annotated[
        int | None, typer.Option(min=1, help="tokens of a cached block  [default: closed loop 16, open loop 512]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="JSON instead of a table")] = False,
) -> None:
    """Count a workload: lengths, rate, how much of it an infinite cache would hold, how often blocks are used."""
    import msgspec

    from router.cli.workload.table import as_json, counted_table, statistics_of, title

    chosen = read(given, seed, rate=rate, requests=requests, sessions=sessions, tokens=scale)
    block_tokens = block or (16 if chosen.is_closed else 512)
    real, blocks = statistics_of(chosen, block_tokens)
    if json:
        told = as_json(given, seed, block_tokens, real, blocks)
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(told), indent=1).decode() + "\n")
    else:
        console = Console(highlight=False)
        console.print(title(given, chosen, block_tokens), markup=False, soft_wrap=True)
        console.print(counted_table(given, chosen, real, blocks))


@workload.command()
def write(
    given: GivenArgument,
    out: Annotated[Path, typer.Option("--out", "-o", help="the file to write: .jsonl or .jsonl.gz", dir_okay=False)],
    seed: SeedOption = 1,
    rate: RateOption = None,
    requests: RequestsOption = None,
    sessions: SessionsOption = None,
    scale: ScaleOption = 1.0,
    at_once: AtOnceOption = 64,
    token_ms: Annotated[float, typer.Option(min=0, help="closed loop: time assumed for a token of an answer")] = 20.0,
) -> None:
    """Write a workload as a Mooncake trace, which is an open loop.

    A closed loop gets times: --at-once sessions begin, each waits for its answers (--token-ms per token) and its
    pauses, and the next begins when one ends. A replay of that no longer waits for anybody, and so says little of how
    agents fare on a fleet that is slower than assumed.
    """
    from router.testbed.workloads.export import encode_mooncake
    from router.testbed.workloads.timeline import ClosedLoopPace
    from router.testbed.workloads.trace_file import write_lines

    chosen = read(given, seed, rate=rate, requests=requests, sessions=sessions, tokens=scale)
    written = write_lines(out, encode_mooncake(chosen, ClosedLoopPace(at_once, token_ms / 1e3)))
    err.print(f"written: {out}: {written:,} requests", markup=False, soft_wrap=True)


def read(given: str, seed: int, **asked: Any) -> Workload:
    """As `load_workload`; lines that are no use are told, the first few of them by name."""
    from router.testbed.workloads.source import NAMED_LINES, load_workload

    unusable: list[str] = []
    try:
        return load_workload(given, seed=seed, told=unusable.append, **asked)
    finally:
        for line in unusable[:NAMED_LINES]:
            err.print(line, markup=False, soft_wrap=True)
        if len(unusable) > NAMED_LINES:
            err.print(f"{given}: {len(unusable):,} lines in all were left out", markup=False, soft_wrap=True)
