"""What each cache tier saves on real engines, and what a pool and cache-aware routing save agents.

    python -m tests.bench.real_stack layers --config configs/stack-cpu.yaml
    python -m tests.bench.real_stack agents --config configs/stack-cpu.yaml

Both start the stack that the configuration describes, or use it where it runs, and write JSON, a chart and logs.
Exit codes are those of `warmroute`; 130 after Ctrl-C, which ends the measurement and not its report.
"""

from __future__ import annotations

import asyncio
import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from router.cli.serve.command import StackConfig
from router.cli.terminal.failures import error_console, run
from router.config.reader import read_config
from router.errors import ConfigError, quote_name
from router.lab.workloads.presets import PRESETS, AgentsWorkload
from tests.bench.real_stack.command import bench_agents, bench_layers
from tests.bench.real_stack.environment import environment_factory

app = typer.Typer(name="python -m tests.bench.real_stack", no_args_is_help=True, pretty_exceptions_enable=False)

OutOption = Annotated[Path, typer.Option("--out", "-o", help="folder for JSON, chart and logs", file_okay=False)]
ChartOption = Annotated[bool, typer.Option(help="draw the chart")]


@app.command()
def layers(
    config: StackConfig,
    out: OutOption = Path("bench-layers"),
    tokens: Annotated[int, typer.Option(min=256, help="length of the prompt")] = 4096,
    repetitions: Annotated[int, typer.Option(min=1, help="measurements of each of the four cases")] = 6,
    seed: Annotated[int | None, typer.Option(help="seed of the prompts; default: new ones each time")] = None,
    chart: ChartOption = True,
) -> None:
    """Measure one prompt computed, from the engine's own cache and from the pool: what each cache tier saves."""
    engines = environment_factory(read_config(config), out, partial(error_console().print, markup=False))
    complete = asyncio.run(bench_layers(engines, out, tokens, repetitions, seed, chart))
    sys.exit(0 if complete else 130)


@app.command()
def agents(
    config: StackConfig,
    out: OutOption = Path("bench-agents"),
    preset: Annotated[str, typer.Option(help="codex or claude")] = "codex",
    sessions: Annotated[int, typer.Option(min=1, help="concurrent agents, one session each")] = 8,
    turns: Annotated[float, typer.Option(min=1, help="median turns of a session (codex: 33)")] = 8,
    scale: Annotated[float, typer.Option(help="factor on all lengths (codex: first prompt 12,000 tokens)")] = 0.15,
    think: Annotated[float, typer.Option(help="factor on all pauses (codex: median 5.2 s)")] = 0.2,
    policy: Annotated[str, typer.Option(help="the cache-aware policy")] = "expected_ttft",
    seed: Annotated[int, typer.Option(help="seed of the workload")] = 1,
    chart: ChartOption = True,
) -> None:
    """Measure agents in a closed loop: round robin without and with a pool, and cache-aware routing with it."""
    whole = PRESETS.get(preset)
    if not isinstance(whole, AgentsWorkload):
        raise ConfigError(f"--preset: {quote_name(preset)} has no agents; choose codex or claude")
    shares = {"sessions": sessions / whole.sessions, "turns": turns / whole.turns.median}
    scaled = whole.scale(tokens=scale, think=think, **shares)
    engines = environment_factory(read_config(config), out, partial(error_console().print, markup=False))
    complete = asyncio.run(bench_agents(engines, out, scaled.workload(seed), policy, chart))
    sys.exit(0 if complete else 130)


if __name__ == "__main__":
    run(app)
