"""The report of `warmroute load` for the terminal: a table, and below it a line per problem."""

from __future__ import annotations

from collections.abc import Iterator

from router.cli.terminal.output import MISSING, Grid, make_grid
from router.testbed.loadgen.report import (
    UNKNOWN_TARGET,
    LoadReport,
    compute_hit_share,
    group_by_target,
    summarize_client,
    summarize_load,
)

LATE_S = 0.1  # at the 99th percentile: from here on the client's own delay is no longer small beside a TTFT
REASONS = 5


def load_table(report: LoadReport) -> Grid:
    """Return a row per figure."""
    title = f"{report.workload.name} at {report.url}, {report.loop}"
    return make_grid(title, ("", ""), _rows(report))


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
    """Return a line per problem; an empty list when there was none."""
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
    return MISSING if seconds is None else f"{seconds * 1e3:,.{digits}f}"


def _percent(share: float | None) -> str:
    return MISSING if share is None else f"{share:.1%}"
