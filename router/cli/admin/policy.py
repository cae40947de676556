"""`warmroute policy`: what decides in a running router, what else could, and how that would change things."""

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
DryOption = Annotated[bool, typer.Option("--dry-run", help="say what would happen, and do nothing")]
HERE = "http://127.0.0.1:8001"


@policy.command("list")
def list_(admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """The policies, which of them are in use, and what went wrong lately."""
    from router.cli.admin import tables

    show(tables.policies(client_at(admin, token_env).get("policies")))


@policy.command("show")
def show_(name: str, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """One policy as YAML, with every default written out."""
    sys.stdout.write(client_at(admin, token_env).text("policies", name))


@policy.command()
def put(
    file: Path,
    name: Annotated[str | None, typer.Option(help="what it is called; default: the file's name")] = None,
    activate: Annotated[bool, typer.Option("--activate", help="and let it decide, in the same switch")] = False,
    dry_run: DryOption = False,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Give the router a policy, or a new text of one it has; in memory: it writes no file."""
    from router.cli.admin import tables

    client = client_at(admin, token_env)
    show(tables.switch(_put(client, file, name, activate=activate, dry_run=dry_run)))


@policy.command()
def plan(
    policy: Annotated[str, typer.Argument(metavar="FILE|NAME")],
    name: Annotated[str | None, typer.Option(help="what FILE would be called; default: its own name")] = None,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """How the last 10,000 choices would change if this policy decided. Nothing is switched."""
    from router.cli.admin import tables

    client = client_at(admin, token_env)
    if policy.endswith((".yaml", ".yml")) or Path(policy).is_file():
        show(tables.switch(_put(client, Path(policy), name, activate=True, dry_run=True)))
    else:
        show(tables.switch(client.post({"policy": policy, "dry_run": True}, "activate")))


@policy.command()
def activate(name: str, dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Let a policy decide, for everybody: a running experiment ends."""
    from router.cli.admin import tables

    show(tables.switch(client_at(admin, token_env).post({"policy": name, "dry_run": dry_run}, "activate")))


@policy.command()
def undo(dry_run: DryOption = False, admin: AdminOption = HERE, token_env: TokenOption = None) -> None:
    """Take the last switch back; again: the one before."""
    from router.cli.admin import tables

    show(tables.switch(client_at(admin, token_env).post(None, "undo", dry_run=dry_run)))


@policy.command()
def audit(
    limit: Annotated[int, typer.Option(min=1, max=1000, help="how many entries")] = 20,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Who switched what, when and why, the newest first."""
    from router.cli.admin import tables

    show(tables.audit(client_at(admin, token_env).get("audit", limit=limit)))


def read(file: Path) -> str:
    """Raises ConfigError."""
    from router.config.yaml_source import read_text

    return read_text(file)


def show(what: RenderableType) -> None:
    console().print(what, soft_wrap=False)


def console() -> Console:
    """Of standard output as it is now; not a terminal: wide, so that no table is cut."""
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=160)


def _put(client: AdminClient, file: Path, name: str | None, **asked: bool) -> dict[str, Any]:
    given = name or file.stem
    if given in ("", ".", ".."):
        raise ConfigError(f"{file}: what is this policy called? Say it with --name")
    return client.put(read(file), "policies", given, **asked)


def client_at(admin: str, token_env: str | None) -> AdminClient:
    from router.cli.admin.client import AdminClient

    return AdminClient(admin, token_env)
