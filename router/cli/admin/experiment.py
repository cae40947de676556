"""`warmroute experiment`: show a running router's experiment as tables or a chart, start one, and end it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.cli.admin.policy import HERE, AdminOption, DryOption, TokenOption, client_at, console, print_result, read
from router.clock import SystemClock
from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:
    from router.cli.admin.client import AdminClient

experiment = typer.Typer(name="experiment", invoke_without_command=True)

REFRESH_S = 2.0

ChartOption = Annotated[
    Path | None, typer.Option("--chart", help="draw estimates and intervals to this PNG or SVG", dir_okay=False)
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="refresh every 2 s, until Ctrl-C")]


@experiment.callback()
def about(
    context: typer.Context,
    chart: ChartOption = None,
    watch: WatchOption = False,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Compare policies on live requests.

    \f
    Raises ConfigError for options before the command.
    """
    if context.invoked_subcommand is None:
        show(chart, watch, admin, token_env)
    elif (chart, watch, admin, token_env) != (None, False, HERE, None):
        raise ConfigError(
            f"options go after the command: warmroute experiment {context.invoked_subcommand} --admin ..."
        )


@experiment.command()
def show(
    chart: ChartOption = None, watch: WatchOption = False, admin: AdminOption = HERE, token_env: TokenOption = None
) -> None:
    """Show the arms, their figures with intervals, and the verdicts.

    \f
    Raises WarmrouteError when a chart is requested of no experiment.
    """
    from router.cli.admin import charts, tables
    from router.cli.terminal import drawing

    if chart is not None:
        drawing.require_for(chart)
    client = client_at(admin, token_env)
    if watch:
        _watch(client)
    answer = client.get("experiment")
    if not watch:
        print_result(tables.show_experiment(answer))
    if chart is not None:
        shown = answer if answer["running"] else answer["last"]
        if shown is None:
            raise WarmrouteError("--chart: no experiment is running and none has ended: there is nothing to draw")
        charts.experiment_chart(shown, tables.format_time(SystemClock().wall()), chart)
        print_result(f"written: {chart}")


@experiment.command()
def start(file: Path, dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Start an experiment from a file with an `experiment` section; it replaces a running one."""
    from router.cli.admin import tables

    print_result(tables.show_switch(client_at(admin, token_env).put(read(file), "experiment", dry_run=dry_run)))


@experiment.command()
def end(dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """End the experiment: the active policy decides every request."""
    from router.cli.admin import tables

    print_result(tables.show_switch(client_at(admin, token_env).delete("experiment", dry_run=dry_run)))


def _watch(client: AdminClient) -> None:
    """Show the experiment, refreshed every `REFRESH_S`, until Ctrl-C."""
    import time

    from rich.live import Live

    from router.cli.admin import tables

    try:
        with Live(console=console(), auto_refresh=False) as live:
            while True:
                live.update(tables.show_experiment(client.get("experiment")), refresh=True)
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return
