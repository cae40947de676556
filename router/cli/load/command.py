"""`warmroute load` as a command: the endpoint is looked at, the sessions are shared out, and what came of it is shown.

The workload comes ready made: where its preset or file is read is somebody else's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from router.cli.load.chart import loaded_chart
from router.cli.load.table import loaded_remarks, loaded_table
from router.cli.terminal.drawing import require_for
from router.cli.terminal.interrupt import cancellable
from router.cli.terminal.output import progress_bar, readable_console, versions, when_of, write_json
from router.clock import Clock, SystemClock
from router.errors import WarmrouteError
from router.testbed.loadgen.calibration import find_first_model, measure_tokens_per_word
from router.testbed.loadgen.client import LoadClient
from router.testbed.loadgen.conversations import Prompts
from router.testbed.loadgen.job import LoadJob, SentRequest
from router.testbed.loadgen.processes import run_clients
from router.testbed.loadgen.report import LoadReport, load_json
from router.testbed.loadgen.sharding import split_sessions
from router.testbed.workloads import Workload


@dataclass(frozen=True)
class LoadRequest:
    """What the command was told, beside the workload."""

    url: str
    model: str | None = None  # None: the first one that the endpoint names
    api_key: str | None = None
    at_once: int | None = None  # agents of a closed loop; None: an open one
    duration_s: float | None = None  # nothing new is sent after it
    processes: int = 2
    prompts: Prompts = "text"
    text_seed: int = 1
    json: Path | None = None
    chart: Path | None = None


class NoAnswers(WarmrouteError):
    """Every request of a load failed; the report says how."""


async def run_load(
    asked: LoadRequest, workload: Workload, clock: Clock | None = None, console: Console | None = None
) -> bool:
    """Shows a table, and writes what was asked for. False: interrupted, and so only a part.

    Raises NoEndpoint, NoClients, NothingAnswered, and WarmrouteError for a file that cannot be written.
    """
    clock, console = clock or SystemClock(), console or readable_console()
    if asked.chart is not None:
        require_for(asked.chart)
    loaded = await _begun(asked, workload, clock)
    with progress_bar(console) as progress, cancellable(loaded):
        bar = progress.add_task("requests", total=workload.turns)

        def tell(sent: SentRequest) -> None:
            loaded.requests.append(sent)
            failed = f" ({sum(loaded.failures.values())} failed)" if sent.failure is not None else None
            progress.update(bar, completed=len(loaded.requests), description=failed and f"requests{failed}")

        loaded.process_failures = await run_clients(_jobs(asked, loaded), clock, tell)
    _report(asked, loaded, clock, console)
    if loaded.requests and not loaded.answers:
        raise NoAnswers("nothing was answered")
    return not loaded.interrupted


async def _begun(asked: LoadRequest, workload: Workload, clock: Clock) -> LoadReport:
    """An empty report, once the endpoint is known."""
    model = asked.model or await find_first_model(asked.url, asked.api_key)
    per_word = None
    if asked.prompts == "text":
        async with LoadClient(asked.url, model, clock, asked.api_key) as client:
            per_word = await measure_tokens_per_word(client, asked.text_seed)
    return LoadReport(
        url=asked.url,
        model=model,
        workload=workload,
        prompts=asked.prompts,
        text_seed=asked.text_seed,
        concurrency=asked.at_once,
        processes=asked.processes,
        tokens_per_word=per_word,
    )


def _jobs(asked: LoadRequest, loaded: LoadReport) -> list[LoadJob]:
    workload = loaded.workload
    return [
        LoadJob(
            url=loaded.url,
            model=loaded.model,
            api_key=asked.api_key,
            name=f"{workload.name}-{loaded.text_seed}",
            text_seed=loaded.text_seed,
            prompts=asked.prompts,
            tokens_per_word=loaded.tokens_per_word or 1.0,
            concurrency=share.concurrency,
            until_s=asked.duration_s,
            sessions=share.sessions,
        )
        for share in split_sessions(workload.sessions, asked.at_once, asked.processes)
    ]


def _report(asked: LoadRequest, loaded: LoadReport, clock: Clock, console: Console) -> None:
    console.print(loaded_table(loaded))
    for line in loaded_remarks(loaded):
        console.print(line, style="yellow", markup=False, soft_wrap=True)
    when = when_of(clock)
    if asked.json is not None:
        write_json(console, asked.json, load_json(loaded, versions(), when))
    if asked.chart is not None and loaded.answers:
        loaded_chart(loaded, versions(), when, asked.chart)
        console.print(f"written: {asked.chart}", soft_wrap=True)
