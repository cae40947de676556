"""`warmroute policies`: list the policies that ship with Warmroute with a sentence on each, or print one."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

policies = typer.Typer(name="policies", help="List the policies that ship with Warmroute, or print one.")


def explanation(text: str) -> str:
    """Return the leading comment of a policy file as one line."""
    lines = text.splitlines()
    end = next((i for i, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return " ".join(" ".join(line.removeprefix("#").strip() for line in lines[:end]).split())


def first_sentence(text: str) -> str:
    """Return `text` up to its first full stop that a space follows, or all of it."""
    before, stop, _ = text.partition(". ")
    return before + stop.rstrip()


@policies.callback(invoke_without_command=True)
def list_(context: typer.Context) -> None:
    """List the policies that ship with Warmroute."""
    from rich.table import Table

    from router.cli.terminal.output import readable_console
    from router.config.lookup import list_shipped_policies

    if context.invoked_subcommand is not None:
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("policy", no_wrap=True)
    table.add_column("what it does")
    for name, file in list_shipped_policies().items():
        table.add_row(name, first_sentence(explanation(file.read_text(encoding="utf-8"))))
    readable_console().print(table)


@policies.command()
def show(name: str) -> None:
    """Print a shipped policy with its explanation. Save it as a policy file of your own."""
    sys.stdout.write(_shipped_file(name).read_text(encoding="utf-8"))


def _shipped_file(name: str) -> Path:
    """Return the file of a shipped policy. Raises ConfigError with the known names when there is none."""
    from router.config.lookup import list_shipped_policies
    from router.config.validation_errors import describe_unknown
    from router.errors import ConfigError

    shipped = list_shipped_policies()
    if name not in shipped:
        raise ConfigError(describe_unknown("policy", name, shipped))
    return shipped[name]
