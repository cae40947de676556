"""`warmroute experiment`: how a running router's experiment stands, as tables or a chart; its start and its end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from router.cli.admin.policy import HERE, AdminOption, DryOption, TokenOption, client_at, console, read, show
from router.clock import SystemClock
from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:
    from router.cli.admin.client import AdminClient

experiment = typer.Typer(name="experiment", invoke_without_command=True, help="Policies side by side on live requests.")

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
    if context.invoked_subcommand is None:
        show_(chart, watch, admin, token_env)
    elif (chart, watch, admin, token_env) != (None, False, HERE, None):
        raise ConfigError(f"options go behind the word: warmroute experiment {context.invoked_subcommand} --admin ...")


@experiment.command("show")
def show_(
    chart: ChartOption = None, watch: WatchOption = False, admin: AdminOption = HERE, token_env: TokenOption = None
) -> None:
    """The arms, their figures with intervals, and verdicts."""
    from router.cli.admin import charts, tables
    from router.cli.terminal import drawing

    if chart is not None:
        drawing.require_for(chart)
    client = client_at(admin, token_env)
    if watch:
        _watched(client)
    told = client.get("experiment")
    if not watch:
        show(tables.experiment(told))
    if chart is not None:
        drawn = told if told["running"] else told["last"]
        if drawn is None:
            raise WarmrouteError("there is nothing to draw: no experiment is running, and none has ended")
        charts.experiment_chart(drawn, tables.when(SystemClock().wall()), chart)
        show(f"written: {chart}")


@experiment.command()
def start(file: Path, dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Start an experiment from a file with an `experiment` section, in the place of one that runs."""
    from router.cli.admin import tables

    show(tables.switch(client_at(admin, token_env).put(read(file), "experiment", dry_run=dry_run)))


@experiment.command()
def end(dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """End the experiment: the active policy decides for everybody."""
    from router.cli.admin import tables

    show(tables.switch(client_at(admin, token_env).delete("experiment", dry_run=dry_run)))


def _watched(client: AdminClient) -> None:
    """Until Ctrl-C."""
    import time

    from rich.live import Live

    from router.cli.admin import tables

    try:
        with Live(console=console(), auto_refresh=False) as live:
            while True:
                live.update(tables.experiment(client.get("experiment")), refresh=True)
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return
