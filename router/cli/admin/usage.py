"""`warmroute usage`: show what each tenant of a running router used."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from router.cli.admin.commands import HERE, AdminOption, TokenOption, client_at, print_result

DayOption = Annotated[str | None, typer.Option("--from", metavar="YYYY-MM-DD", help="first day, UTC; default: today")]
LastOption = Annotated[str | None, typer.Option("--to", metavar="YYYY-MM-DD", help="last day; default: today")]


def usage(
    first: DayOption = None,
    last: LastOption = None,
    csv: Annotated[bool, typer.Option("--csv", help="print CSV, a line per day, tenant and model")] = False,
    admin: AdminOption = HERE,
    token_env: TokenOption = None,
) -> None:
    """Show what each tenant used and what it was refused. Counted are requests, tokens by kind, and estimated GPU
    time.
    """
    from router.cli.admin.report import show_usage

    client = client_at(admin, token_env)
    params = {name: day for name, day in (("from", first), ("to", last)) if day is not None}
    if csv:
        sys.stdout.write(client.text("usage", format="csv", **params))
        return
    print_result(show_usage(client.get("usage", **params)["usage"]))
