"""`warmroute policy` and `warmroute experiment`: show and switch the policies that decide in a running router."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from router.cli.terminal.options import written_path
from router.clock import SystemClock
from router.errors import ConfigError, WarmrouteError

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from router.cli.admin.client import AdminClient

HERE = "http://127.0.0.1:8001"
REFRESH_S = 2.0

policy = typer.Typer(name="policy", no_args_is_help=True, help="See and switch the policies of a running router.")
experiment = typer.Typer(name="experiment", invoke_without_command=True)

AdminOption = Annotated[str, typer.Option("--admin", help="URL of the router's admin listener")]
TokenOption = Annotated[
    str | None, typer.Option("--token-env", metavar="NAME", help="environment variable with the admin token")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="print what would change, and change nothing")]
ChartOption = Annotated[
    Path | None,
    typer.Option("--chart", help="draw estimates and intervals to this PNG or SVG", callback=written_path("file")),
]
WatchOption = Annotated[bool, typer.Option("--watch", "-w", help="refresh every 2 s, until Ctrl-C")]


@policy.command("list")
def list_(admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """List the policies, their roles, and recent problems."""
    from router.cli.admin.report import show_policies

    print_result(show_policies(client_at(admin, token_env).get("policies")))


@policy.command("show")
def show_(name: str, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Print one policy as YAML, with every default written out."""
    sys.stdout.write(client_at(admin, token_env).text("policies", name))


@policy.command()
def put(
    file: Path,
    name: Annotated[str | None, typer.Option(help="name of the policy; default: the file's name")] = None,
    activate: Annotated[bool, typer.Option("--activate", help="also make it active, in the same switch")] = False,
    dry_run: DryOption = False,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Add a policy or replace one, in the router's memory. No file is written."""
    client = client_at(admin, token_env)
    _print_switch(_put(client, file, name, activate=activate, dry_run=dry_run))


@policy.command()
def plan(
    policy: Annotated[str, typer.Argument(metavar="FILE|NAME")],
    name: Annotated[str | None, typer.Option(help="name that FILE would get; default: its own")] = None,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Show how the last 10,000 choices would change under this policy. Nothing is switched."""
    client = client_at(admin, token_env)
    if policy.endswith((".yaml", ".yml")) or Path(policy).is_file():
        _print_switch(_put(client, Path(policy), name, activate=True, dry_run=True))
    else:
        _print_switch(client.post({"policy": policy, "dry_run": True}, "activate"))


@policy.command()
def activate(name: str, dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Make a policy decide every request; a running experiment ends."""
    _print_switch(client_at(admin, token_env).post({"policy": name, "dry_run": dry_run}, "activate"))


@policy.command()
def undo(dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Take back the last switch; repeat it for the one before."""
    _print_switch(client_at(admin, token_env).post(None, "undo", dry_run=dry_run))


@policy.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="how many entries")] = 20,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """List who switched what, when and why, newest first."""
    from router.cli.admin.report import show_audit

    print_result(show_audit(client_at(admin, token_env).get("audit", limit=limit)))


def read(file: Path) -> str:
    """Return the text of `file`. Raises ConfigError when it cannot be read."""
    from router.config.yaml_source import read_text

    return read_text(file)


def _print_switch(answer: Mapping[str, Any]) -> None:
    from router.cli.admin.report import show_switch

    print_result(show_switch(answer))


def print_result(result: RenderableType) -> None:
    """Print `result` to standard output."""
    console().print(result, soft_wrap=False)


def console() -> Console:
    """Return a console for standard output as it is now; in a file or pipe it is wide enough for every table."""
    from router.cli.terminal.output import readable_console

    return readable_console(160)


def _put(client: AdminClient, file: Path, name: str | None, **params: bool) -> dict[str, Any]:
    name = name or file.stem
    if name in ("", ".", ".."):
        raise ConfigError(f"{file}: the file name gives no policy name: set one with --name")
    with _naming(file, f"policy {name}:"):
        return client.put(read(file), "policies", name, **params)


@contextmanager
def _naming(file: Path, prefix: str) -> Iterator[None]:
    """Name `file` in complaints about its text, which the router calls `prefix`."""
    try:
        yield
    except ConfigError as error:
        lines = [
            f"{file}:{line.removeprefix(prefix)}" if line.startswith(prefix) else line for line in error.complaints
        ]
        raise ConfigError(*lines, omitted=error.omitted) from error


def client_at(admin: str, token_env: str | None) -> AdminClient:
    """Return a client of the admin listener at URL `admin`; see `AdminClient`."""
    from router.cli.admin.client import AdminClient

    return AdminClient(admin, token_env)


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
    from router.cli.admin.report import experiment_chart, format_time, show_experiment
    from router.cli.terminal.drawing import require_for

    if chart is not None:
        require_for(chart)
    client = client_at(admin, token_env)
    if watch:
        _watch(client)
    answer = client.get("experiment")
    if not watch:
        print_result(show_experiment(answer))
    if chart is not None:
        shown = answer if answer["running"] else answer["last"]
        if shown is None:
            raise WarmrouteError("--chart: no experiment is running and none has ended: there is nothing to draw")
        experiment_chart(shown, format_time(SystemClock().wall()), chart)
        print_result(f"written: {chart}")


@experiment.command()
def start(file: Path, dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Start an experiment from a file with an `experiment` section. It replaces a running one."""
    with _naming(file, "experiment:"):
        answer = client_at(admin, token_env).put(read(file), "experiment", dry_run=dry_run)
    _print_switch(answer)


@experiment.command()
def end(dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """End the experiment: the active policy decides every request."""
    _print_switch(client_at(admin, token_env).delete("experiment", dry_run=dry_run))


def _watch(client: AdminClient) -> None:
    """Show the experiment, refreshed every `REFRESH_S`, until Ctrl-C."""
    import time

    from rich.live import Live

    from router.cli.admin.report import show_experiment

    try:
        with Live(console=console(), auto_refresh=False) as live:
            while True:
                live.update(show_experiment(client.get("experiment")), refresh=True)
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return
