"""`warmroute load`: examine the endpoint, share the sessions among client processes, and report the results.

The workload is built by the caller, from a preset or a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from router.cli.terminal import drawing, output
from router.cli.terminal.output import cancellable
from router.clock import Clock, SystemClock
from router.errors import WarmrouteError
from router.lab.loadgen.calibration import find_first_model, measure_tokens_per_word
from router.lab.loadgen.client import LoadClient
from router.lab.loadgen.conversations import Prompts
from router.lab.loadgen.load import LoadJob, SentRequest
from router.lab.loadgen.processes import run_clients, split_sessions
from router.lab.loadgen.report import (
    UNKNOWN_TARGET,
    LoadReport,
    compute_hit_share,
    group_by_target,
    load_json,
    summarize_client,
    summarize_load,
    target_name,
)
from router.lab.workloads.model import Workload

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#2f6f9f", "#e8963a", "#4b9b6e", "#b2557f", "#7a6bb0", "#9aa3af")  # the last one: the less busy targets
FAILED = "#c0392b"
LATE_S = 0.1  # at the 99th percentile: above it, the client's own delay is not small beside a TTFT
REASONS = 5


@dataclass(frozen=True)
class LoadRequest:
    """The command's options, except the workload."""

    url: str
    model: str | None = None  # None: the first one that the endpoint lists
    api_key: str | None = None
    ca_file: str | None = None  # certificates to trust; None: the system's CAs
    at_once: int | None = None  # concurrent agents of a closed loop; None: an open loop
    duration_s: float | None = None  # no request is sent after it
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

    Raises EndpointUnavailable, NoAnswers, and WarmrouteError for a file that cannot be written.
    """
    clock, console = clock or SystemClock(), console or output.readable_console()
    if request.chart is not None:
        drawing.require_for(request.chart)
    report = await _start_report(request, workload, clock)
    with output.progress_bar(console) as progress, cancellable(report):
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
    model = request.model or await find_first_model(request.url, request.api_key, request.ca_file)
    per_word = None
    if request.prompts == "text":
        async with LoadClient(request.url, model, clock, request.api_key, request.ca_file) as client:
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
            ca_file=request.ca_file,
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
    console.print(output.render(load_table(report)))
    for line in load_remarks(report):
        console.print(line, style="yellow", markup=False, soft_wrap=True)
    when = output.format_now(clock)
    if request.json is not None:
        output.write_json(console, request.json, load_json(report, output.versions(), when))
    if request.chart is not None and report.answers:
        load_chart(report, output.versions(), when, request.chart)
        output.report_written(console, request.chart)


def load_table(report: LoadReport) -> output.Grid:
    """Return a row per figure."""
    return output.make_grid(f"{report.workload.name} at {report.url}, {report.loop}", ("", ""), _rows(report))


def _rows(report: LoadReport) -> Iterator[tuple[str, str]]:
    own, client, answered = summarize_load(report), summarize_client(report), report.answers
    yield "requests answered / shed / failed", f"{own.requests:,} / {own.shed:,} / {own.failed:,}"
    ttft = (own.ttft_mean_s, own.ttft_p50_s, own.ttft_p90_s, own.ttft_p99_s)
    yield "TTFT mean / p50 / p90 / p99, ms", " / ".join(map(_ms, ttft))
    yield "TPOT mean / p90, ms", f"{_ms(own.tpot_mean_s, 1)} / {_ms(own.tpot_p90_s, 1)}"
    yield "requests per second", f"{own.requests_per_s:,.1f}"
    yield "tokens per second in / out", f"{own.input_tokens_per_s:,.0f} / {own.output_tokens_per_s:,.0f}"
    yield "prompt tokens from a cache", _percent(compute_hit_share(answered))
    targets = group_by_target(report)
    for target, at in targets.items() if set(targets) != {UNKNOWN_TARGET} else ():
        value = f"{at.requests:,}, {_percent(at.hit_share)}, {_ms(at.ttft_p50_s)}"
        yield f"at {target}: requests, from cache, TTFT p50 ms", value
    sizes = (client.prompt_tokens_share, client.output_tokens_share)
    yield "real / requested tokens, prompts and answers", " and ".join(map(_percent, sizes))
    late = (client.late_p50_s, client.late_p99_s, client.late_max_s)
    yield "sent late by the client itself p50 / p99 / max, ms", " / ".join(_ms(some, 1) for some in late)


def load_remarks(report: LoadReport) -> list[str]:
    """Return a line per problem; an empty list if there was none."""
    failures = report.failures
    lines = [f"failed {times}x: {reason[:160]}" for reason, times in failures.most_common(REASONS)]
    if len(failures) > REASONS:
        lines.append(f"and {len(failures) - REASONS} other reasons (--json has all)")
    late_s = summarize_client(report).late_p99_s
    if late_s is not None and late_s > LATE_S:
        lines.append("the client sent late, so the figures are not reliable: raise --processes, or lower the load")
    lines += report.process_failures
    if report.interrupted:
        lines.append("interrupted: the report holds what was done before")
    return lines


def _ms(seconds: float | None, digits: int = 0) -> str:
    return output.MISSING if seconds is None else f"{seconds * 1e3:,.{digits}f}"


def _percent(share: float | None) -> str:
    return output.MISSING if share is None else f"{share:.1%}"


def load_chart(report: LoadReport, versions: str, when: str, file: Path) -> None:
    """Draw a report with at least one answer to `file`. Raises WarmrouteError when the file cannot be written."""
    figure = drawing.canvas(11.0, 4.2)
    over_time, distribution = figure.subplots(1, 2, width_ratios=(1.6, 1.0))
    _over_time(over_time, report)
    drawing.draw_distribution(distribution, (one.ttft_s or 0.0 for one in report.answers), COLOURS[0])
    drawing.label(distribution, x="seconds to the first token", y="share of answers that waited no longer")
    for axes in (over_time, distribution):
        drawing.bare(axes, 9, "both")
    hit = compute_hit_share(report.answers)
    title = f"{report.workload.name}, {report.loop}: {len(report.answers):,} answers"
    title += "" if hit is None else f", {hit:.1%} of prompt tokens from a cache"
    drawing.write_heading(figure, title, f"{report.url}, {versions}, {when}")
    drawing.save(figure, file)


def _over_time(axes: Axes, report: LoadReport) -> None:
    """Draw a dot per answer and a cross per failure; the busiest targets have their own colours."""
    busiest = sorted(group_by_target(report).items(), key=lambda item: -item[1].requests)
    own_colour = [target for target, _ in busiest[: len(COLOURS) - 1]]
    groups = {target: [one for one in report.answers if target_name(one) == target] for target in sorted(own_colour)}
    groups["others"] = [one for one in report.answers if target_name(one) not in own_colour]
    for colour, (target, rows) in zip(COLOURS, groups.items(), strict=False):
        if rows:
            name = "answers" if target == UNKNOWN_TARGET else target
            sent, waited = [one.sent_s for one in rows], [one.ttft_s or 0.0 for one in rows]
            axes.plot(sent, waited, "o", ms=3.5, alpha=0.6, mew=0, color=colour, label=name)
    failed = [one.sent_s for one in report.requests if one.failure is not None]
    if failed:
        lowest = min(one.ttft_s or 0.0 for one in report.answers)
        axes.plot(failed, [lowest] * len(failed), "x", ms=4, color=FAILED, label="failed")
    axes.set_yscale("log")
    drawing.plain_numbers(axes.yaxis)
    drawing.label(axes, x="sent at, seconds from the start", y="seconds to the first token")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.14))
