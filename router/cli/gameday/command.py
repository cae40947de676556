"""`warmroute gameday`: play faults against a fleet under load, and report which bounds held.

Exit code 0 if every bound holds, 1 if one does not, 130 after Ctrl-C; the faults played by then are reported.
"""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.cli.terminal.options import ChartOption, JsonOption, web_url, written_path
from router.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from router.clock import Clock
    from router.config.sections.gameday import GamedayFile
    from router.lab.gameday.clients import LoadEndpoint
    from router.lab.gameday.play import GamedayRun
    from router.lab.gameday.stage import Stage

    Fleet = tuple[Stage | None, LoadEndpoint]
    """Where a game day is played; without a stage, only clients can be the fault."""

SCRIPT = "full"


def gameday(
    script: Annotated[str, typer.Argument(help="a game day: full, short, another name, or a file (.yaml)")] = SCRIPT,
    url: Annotated[
        str | None,
        typer.Option(
            help="a running router: only the faults that clients can cause are played against it",
            callback=web_url("--url"),
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="with --url: model to request; default: the first one listed")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="WARMROUTE_API_KEY", help="with --url: its API key")] = None,
    seed: Annotated[int | None, typer.Option(help="seed instead of the file's")] = None,
    folder: Annotated[
        Path | None,
        typer.Option(help="keep the routers' configurations, logs and records here", callback=written_path("folder")),
    ] = None,
    json: JsonOption = None,
    chart: ChartOption = None,
) -> None:
    """Kill, freeze, slow and deceive engines under load.

    It runs routers and engines of its own, on ports of its own, stops them at the end, and reports what the router did.
    """
    import asyncio

    from router.cli.gameday.chart import draw_run
    from router.cli.gameday.report import json_run, print_run
    from router.cli.terminal import drawing, output
    from router.clock import SystemClock

    _check_model(model, url)
    if chart is not None:
        drawing.require_for(chart)
    clock, console = SystemClock(), output.readable_console()
    day = _read(script, seed)
    try:
        fleet = _own_fleet(day, folder, console) if url is None else _running_fleet(url, model, api_key, clock)
        run = asyncio.run(_play(day, fleet, clock, console))
    except KeyboardInterrupt:
        sys.exit(130)  # before the load began
    outcomes = run.outcomes()
    print_run(run, outcomes, console)
    when = output.format_now(clock)
    if json is not None:
        output.write_json(console, json, json_run(run, outcomes, output.versions(), when))
    if chart is not None and run.rows:
        draw_run(run, outcomes, output.versions(), when, chart)
        output.report_written(console, chart)
    if run.interrupted:
        sys.exit(130)
    if not run.holds(outcomes):
        sys.exit(1)


def _check_model(model: str | None, url: str | None) -> None:
    """Raises ConfigError for `model` without `url`: the fleet that is started here has only one model."""
    if model is not None and url is None:
        raise ConfigError("--model: only with --url")


def _read(script: str, seed: int | None) -> GamedayFile:
    """Return the game day with all its faults. Raises ConfigError for an unknown name or a wrong file."""
    from router.config.lookup import SHIPPED, resolve_file
    from router.config.reader import read_gameday_file
    from router.lab.gameday.draw import draw_faults

    day = read_gameday_file(resolve_file("game day", script, SHIPPED / "gamedays", option="gameday"))
    return draw_faults(day if seed is None else day.model_copy(update={"seed": seed}))


@asynccontextmanager
async def _running_fleet(url: str, model: str | None, api_key: str | None, clock: Clock) -> AsyncIterator[Fleet]:
    """Yield the fleet behind somebody else's router."""
    from router.lab.gameday.clients import examine_endpoint

    yield None, await examine_endpoint(url, model, api_key, clock)


@asynccontextmanager
async def _own_fleet(day: GamedayFile, folder: Path | None, console: Console) -> AsyncIterator[Fleet]:
    """Run simulated engines and routers, whose files are kept in `folder` if it is given."""
    from tempfile import TemporaryDirectory

    from router.lab.gameday.stage import Stage

    with ExitStack() as opened:
        kept = folder or Path(opened.enter_context(TemporaryDirectory(prefix="warmroute-gameday-")))
        kept.mkdir(parents=True, exist_ok=True)
        routers = "a router" if day.fleet.routers == 1 else f"{day.fleet.routers} routers"
        console.print(f"starting {day.fleet.engines} simulated engines and {routers} ...")
        async with Stage(day, kept) as stage:
            yield stage, stage.endpoint


async def _play(
    day: GamedayFile, fleet: AbstractAsyncContextManager[Fleet], clock: Clock, console: Console
) -> GamedayRun:
    """Play the game day to its end or until Ctrl-C."""
    from rich.progress import TextColumn

    from router.cli.gameday.report import describe_progress
    from router.cli.terminal.output import cancellable, progress_bar
    from router.lab.gameday.play import GamedayRun

    columns = TextColumn("{task.completed:.0f}/{task.total:.0f} s")
    async with fleet as (stage, endpoint):
        run = GamedayRun(day, endpoint, clock, stage)
        with progress_bar(console, columns) as progress:
            bar = progress.add_task("", total=day.ends_s)
            with cancellable(run):
                await run.run(lambda now: progress.update(bar, completed=now.now_s, description=describe_progress(now)))
    return run
