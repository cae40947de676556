"""`warmroute load`: examine the endpoint, share the sessions among client processes, and report the results.

The workload is built by the caller, from a preset or a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from router.cli.load.chart import load_chart
from router.cli.load.table import load_remarks, load_table
from router.cli.terminal.drawing import require_for
from router.cli.terminal.interrupt import cancellable
from router.cli.terminal.output import (
    progress_bar,
    readable_console,
    render,
    report_written,
    versions,
    when_of,
    write_json,
)
from router.clock import Clock, SystemClock
from router.errors import WarmrouteError
from router.testbed.loadgen.calibration import find_first_model, measure_tokens_per_word
from router.testbed.loadgen.client import LoadClient
from router.testbed.loadgen.conversations import Prompts
from router.testbed.loadgen.load import LoadJob, SentRequest
from router.testbed.loadgen.processes import run_clients, split_sessions
from router.testbed.loadgen.report import LoadReport, load_json
from router.testbed.workloads import Workload


@dataclass(frozen=True)
class LoadRequest:
    """The command's options, the workload excepted."""

    url: str
    model: str | None = None  # None: the first one that the endpoint lists
    api_key: str | None = None
    at_once: int | None = None  # concurrent agents of a closed loop; None: an open loop
    duration_s: float | None = None  # after it no request is sent
    processes: int = 2
    prompts: Prompts = "text"
    text_seed: int = 1
    json: Path | None = None
    chart: Path | None = None


class NoAnswers(WarmrouteError):
    """Every request of a load failed; the printed report has the reasons."""


async def run_load(
    request: LoadRequest, workload: Workload, clock: Clock | None = None, console: Console | None = None
) -> bool:
    """Send the workload, print a table, and write the files of `request`. Return False when interrupted.

    Raises EndpointUnavailable, NoAnswers when every request failed, and WarmrouteError for a file that cannot be
    written.
    """
    clock, console = clock or SystemClock(), console or readable_console()
    if request.chart is not None:
        require_for(request.chart)
    report = await _start_report(request, workload, clock)
    with progress_bar(console) as progress, cancellable(report):
        bar = progress.add_task("requests", total=workload.turns)

        def count(sent: SentRequest) -> None:
            report.requests.append(sent)
            failed = f" ({sum(report.failures.values())} failed)" if sent.failure is not None else None
            progress.update(bar, completed=len(report.requests), description=failed and f"requests{failed}")

        report.process_failures = await run_clients(_jobs(request, report), clock, count)
    _print_report(request, report, clock, console)
    if report.requests and not report.answers:
        raise NoAnswers("every request failed: the reasons are above")
    return not report.interrupted


async def _start_report(request: LoadRequest, workload: Workload, clock: Clock) -> LoadReport:
    """Return an empty report, after the endpoint has answered. Raises EndpointUnavailable."""
    model = request.model or await find_first_model(request.url, request.api_key)
    per_word = None
    if request.prompts == "text":
        async with LoadClient(request.url, model, clock, request.api_key) as client:
            per_word = await measure_tokens_per_word(client, request.text_seed)
    return LoadReport(
        url=request.url,
        model=model,
        workload=workload,
        prompts=request.prompts,
        text_seed=request.text_seed,
        concurrency=request.at_once,
        processes=request.processes,
        tokens_per_word=per_word,
    )


def _jobs(request: LoadRequest, report: LoadReport) -> list[LoadJob]:
    workload = report.workload
    return [
        LoadJob(
            url=report.url,
            model=report.model,
            api_key=request.api_key,
            name=f"{workload.name}-{report.text_seed}",
            text_seed=report.text_seed,
            prompts=request.prompts,
            tokens_per_word=report.tokens_per_word or 1.0,
            concurrency=share.concurrency,
            until_s=request.duration_s,
            sessions=share.sessions,
        )
        for share in split_sessions(workload.sessions, request.at_once, request.processes)
    ]


def _print_report(request: LoadRequest, report: LoadReport, clock: Clock, console: Console) -> None:
    console.print(render(load_table(report)))
    for line in load_remarks(report):
        console.print(line, style="yellow", markup=False, soft_wrap=True)
    when = when_of(clock)
    if request.json is not None:
        write_json(console, request.json, load_json(report, versions(), when))
    if request.chart is not None and report.answers:
        load_chart(report, versions(), when, request.chart)
        report_written(console, request.chart)
