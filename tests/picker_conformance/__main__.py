"""The conformance suite against an endpoint picker, as a table and as JSON.

    python -m tests.picker_conformance HOST:PORT

Exit code 1 when a MUST failed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from router.cli.terminal.failures import run
from router.cli.terminal.output import progress_bar, readable_console, render, write_json
from router.clock import SystemClock
from router.errors import WarmrouteError
from tests.picker_conformance.printed import head_lines, result_table, tail_lines
from tests.picker_conformance.report import CaseReport
from tests.picker_conformance.suite import ConformanceOptions, run_suite, select_cases

app = typer.Typer(pretty_exceptions_enable=False)


class NotConforming(WarmrouteError):
    """A case of level MUST failed, or none could be decided."""


@app.command()
def picker_conformance(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="where the picker serves ext_proc")],
    health_port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="port of its health services, plaintext; default: the same one")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="model to request; default: what the picker lists, or a made-up name")
    ] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(help="IP:PORT of an endpoint of the pool, for each; default: found by asking")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="WARMROUTE_API_KEY", help="API key that requests carry")] = None,
    case: Annotated[list[str] | None, typer.Option(help="run this case alone, as EPP-301; may be repeated")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="seconds to wait for each message")] = 5.0,
    json: Annotated[Path | None, typer.Option(help="write the report to this JSON file", dir_okay=False)] = None,
) -> None:
    """Check whether an endpoint picker keeps the endpoint picker protocol (Gateway API inference extension).

    It may be anybody's, and behind TLS, whose certificate is not verified. Run it against a picker without traffic.
    """
    options = ConformanceOptions(
        address, health_port, model, tuple(endpoint or ()), api_key, timeout, tuple(case or ())
    )
    asyncio.run(check_picker(options, json))


async def check_picker(options: ConformanceOptions, out_json: Path | None, console: Console | None = None) -> None:
    """Run the suite and print the report.

    Raises NotConforming after the report, WarmrouteError when the picker cannot be asked or the file not be written.
    """
    console = console or readable_console()
    with progress_bar(console) as progress:
        bar = progress.add_task("picker", total=len(select_cases(options.cases)))

        def step(done: CaseReport) -> None:
            progress.update(bar, advance=1, description=done.id)

        report = await run_suite(options, SystemClock(), step)
    console.print("\n".join(head_lines(report)), soft_wrap=True, markup=False)
    console.print(render(result_table(report)))
    console.print("\n".join(tail_lines(report)), soft_wrap=True, markup=False)
    if out_json is not None:
        write_json(console, out_json, report.as_json())
    if not report.conforms:
        failed = [one.id for one in report.cases if one.level == "MUST" and one.result == "fail"]
        raise NotConforming(f"failed: {', '.join(failed)}" if failed else "no MUST could be decided")


if __name__ == "__main__":
    run(app)
