"""`warmroute policy`: list, show, add, try and switch the policies of a running router."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, RenderableType

from router.errors import ConfigError

if TYPE_CHECKING:
    from router.cli.admin.client import AdminClient

policy = typer.Typer(name="policy", no_args_is_help=True, help="See and switch the policies of a running router.")

AdminOption = Annotated[str, typer.Option("--admin", help="URL of the router's admin listener")]
TokenOption = Annotated[
    str | None, typer.Option("--token-env", metavar="NAME", help="environment variable with the admin token")
]
DryOption = Annotated[bool, typer.Option("--dry-run", help="print what would change, and change nothing")]
HERE = "http://127.0.0.1:8001"


@policy.command("list")
def list_(admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """List the policies, their roles, and recent problems."""
    from router.cli.admin import tables

    print_result(tables.show_policies(client_at(admin, token_env).get("policies")))


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
    """Add a policy or replace one, in the router's memory only: no file is written."""
    from router.cli.admin import tables

    client = client_at(admin, token_env)
    print_result(tables.show_switch(_put(client, file, name, activate=activate, dry_run=dry_run)))


@policy.command()
def plan(
    policy: Annotated[str, typer.Argument(metavar="FILE|NAME")],
    name: Annotated[str | None, typer.Option(help="name that FILE would get; default: its own")] = None,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Show how the last 10,000 choices would change under this policy. Nothing is switched."""
    from router.cli.admin import tables

    client = client_at(admin, token_env)
    if policy.endswith((".yaml", ".yml")) or Path(policy).is_file():
        print_result(tables.show_switch(_put(client, Path(policy), name, activate=True, dry_run=True)))
    else:
        print_result(tables.show_switch(client.post({"policy": policy, "dry_run": True}, "activate")))


@policy.command()
def activate(name: str, dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Make a policy decide every request; a running experiment ends."""
    from router.cli.admin import tables

    print_result(tables.show_switch(client_at(admin, token_env).post({"policy": name, "dry_run": dry_run}, "activate")))


@policy.command()
def undo(dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Take back the last switch; repeat it for the one before."""
    from router.cli.admin import tables

    print_result(tables.show_switch(client_at(admin, token_env).post(None, "undo", dry_run=dry_run)))


@policy.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="how many entries")] = 20,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """List who switched what, when and why, newest first."""
    from router.cli.admin import tables

    print_result(tables.show_audit(client_at(admin, token_env).get("audit", limit=limit)))


def read(file: Path) -> str:
    """Return the text of `file`. Raises ConfigError when it cannot be read."""
    from router.config.yaml_source import read_text

    return read_text(file)


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
    return client.put(read(file), "policies", name, **params)


def client_at(admin: str, token_env: str | None) -> AdminClient:
    """Return a client of the admin listener at URL `admin`; see `AdminClient`."""
    from router.cli.admin.client import AdminClient

    return AdminClient(admin, token_env)
