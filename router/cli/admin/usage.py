"""`warmroute usage`: show what each tenant of a running router used."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from router.cli.admin.commands import HERE, AdminOption, TokenOption, client_at, print_result
from router.errors import quote_name

DayOption = Annotated[str | None, typer.Option("--from", metavar="YYYY-MM-DD", help="first day, UTC; default: today")]
LastOption = Annotated[str | None, typer.Option("--to", metavar="YYYY-MM-DD", help="last day; default: today")]
NUMBERS = ("requests", "input_tokens", "cached_tokens", "output_tokens")


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
    client = client_at(admin, token_env)
    params = {name: day for name, day in (("from", first), ("to", last)) if day is not None}
    if csv:
        sys.stdout.write(client.text("usage", format="csv", **params))
        return
    print_result(show_usage(client.get("usage", **params)["usage"]))


def show_usage(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with a row per day, tenant and model."""
    table = Table("day", "tenant", "model")
    for title in ("requests", "input", "cached", "output", "GPU s", "refused"):
        table.add_column(title, justify="right")
    totals: dict[str, float] = defaultdict(float)
    for row in rows:
        refused = ", ".join(f"{reason} {count:,}" for reason, count in sorted(row["refused"].items()))
        numbers = (f"{row[name]:,}" for name in NUMBERS)
        names = (row["day"], quote_name(row["tenant"]), quote_name(row["model"]) or "-")
        table.add_row(*names, *numbers, f"{row['gpu_s']:,.1f}", refused or "-")
        for name in (*NUMBERS, "gpu_s"):
            totals[name] += row[name]
    if len(rows) > 1:
        table.add_section()
        numbers = (f"{totals[name]:,.0f}" for name in NUMBERS)
        table.add_row("all", "", "", *numbers, f"{totals['gpu_s']:,.1f}", "")
    return table
