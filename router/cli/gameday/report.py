"""The report of a game day: a table with a row per fault, remarks, and JSON values.

The table of a long day has only the calm and the faults that broke a bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from rich.console import Console

from router.cli.terminal import output
from router.config.sections.gameday import GamedayBounds
from router.lab.gameday.ending import Violation
from router.lab.gameday.outcome import BEYOND_LIMIT, CALM, FaultOutcome, has_failed
from router.lab.gameday.play import GamedayRun
from router.lab.gameday.reading import NOTICED_BY
from router.lab.loadgen.load import SentRequest

HEADS = (
    "fault",
    "what",
    "at, s",
    "requests",
    "failed",
    "p50, s",
    "p99",
    "longest",
    "hits",
    "noticed, s",
    "recovered",
    "",
)
LONG_DAY = 20  # faults of a table with all of them
VIOLATIONS = 20  # that are listed
REASONS = 5
BAD, GOOD = "red", "green"


def print_run(run: GamedayRun, outcomes: Sequence[FaultOutcome], console: Console) -> None:
    """Print the table, and the remarks below it."""
    console.print(output.render(run_table(run, outcomes)))
    for line in run_remarks(run, outcomes):
        console.print(line, markup=False, soft_wrap=True)


def run_table(run: GamedayRun, outcomes: Sequence[FaultOutcome]) -> output.Grid:
    """Return a row per fault, the calm first; bounds follow a slash. Request times are times to first token."""
    title = f"game day with {run.script.load.agents} agents, policy {run.script.policy}, seed {run.script.seed}"
    bounds = [run.script.must, *(played.bounds for played in run.played)]
    judged = list(zip(outcomes, bounds, strict=True))
    if len(judged) > LONG_DAY:
        judged = [(one, must) for one, must in judged if one.broken or one.name == CALM]
    rows = [_row(one, must) for one, must in judged]
    return output.make_grid(f"{title} (figure/bound)", HEADS, rows, labels=2)


def _row(one: FaultOutcome, must: GamedayBounds) -> list[output.GridEntry]:
    def entry(name: str, text: str) -> output.GridEntry:
        bound = getattr(must, name)
        shown = "" if bound is None else f"/{bound:.0%}" if name == "hit_share" else f"/{bound:g}"
        return output.GridEntry(text + shown, colour=BAD if name in one.broken else None)

    calm = one.name == CALM
    has_no_sign = one.name not in NOTICED_BY and must.notice_s is None
    blank = output.GridEntry("")
    return [
        output.GridEntry(one.name),
        output.GridEntry(one.detail),
        output.GridEntry(_span(one)),
        output.GridEntry(f"{one.requests:,}"),
        entry("failed", f"{one.failed:,}"),
        output.GridEntry(_seconds(one.p50_s, 3)),
        entry("p99_s", _seconds(one.p99_s, 2)),
        entry("longest_s", _seconds(one.longest_s, 2)),
        entry("hit_share", output.MISSING if one.hit_share is None else f"{one.hit_share:.0%}"),
        blank if has_no_sign else entry("notice_s", _seconds(one.notice_s, 1, "never")),
        blank if calm else entry("recover_s", _seconds(one.recover_s, 1, "not yet")),
        output.GridEntry("broken", colour=BAD) if one.broken else output.GridEntry("holds", colour=GOOD),
    ]


def _span(one: FaultOutcome) -> str:
    if one.ended_s - one.began_s < 0.5:
        return f"{one.began_s:.0f}"
    return f"{one.began_s:.0f}-{one.ended_s:.0f}"


def _seconds(value: float | None, digits: int, missing: str = output.MISSING) -> str:
    return missing if value is None else f"{value:.{digits}f}"


def run_remarks(run: GamedayRun, outcomes: Sequence[FaultOutcome]) -> Iterator[str]:
    """Yield the remarks below the table: broken bounds, violations of what must hold at the end, reasons of failures,
    faults that were not played.
    """
    faults = outcomes[1:]
    if len(faults) >= LONG_DAY:
        yield f"{sum(not one.broken for one in faults)} of {len(faults)} faults are within their bounds"
    if run.script.at_end is not None and not run.interrupted:
        yield f"at the end: {len(run.violations) or 'no'} violations by {len(run.rows) + len(run.others):,} requests"
    yield from (describe_violation(run, one) for one in run.violations[:VIOLATIONS])
    for one in outcomes:
        if one.broken:
            yield f"{one.name} at {one.began_s:.0f} s: {', '.join(one.broken)} broke their bounds"
    if limited := sum(row.status == BEYOND_LIMIT for row in run.rows):
        yield f"beyond the limits of tenants ({BEYOND_LIMIT}): {limited:,} requests"
    reasons = Counter(_reason(row) for row in run.rows if has_failed(row))
    for reason, times in reasons.most_common(REASONS):
        yield f"failed {times}x: {reason}"
    for fault in run.skipped:
        yield f"not played: {fault.fault} at {fault.at_s:g} s: nothing of this router may be touched (--url)"
    if run.is_stuck:
        yield "requests of the load had no end long after it: they were given up"
    if run.interrupted:
        yield "interrupted: the report holds what was played before"


def describe_violation(run: GamedayRun, violation: Violation) -> str:
    """Return the invariant that was violated, when, and after which fault."""
    if violation.at_s is None:
        return violation.what
    before = [one for one in run.played if one.began_s <= violation.at_s]
    after = "before any fault"
    if before:
        after = f"{violation.at_s - before[-1].began_s:.1f} s after {before[-1].fault} {before[-1].detail}".rstrip()
    return f"{violation.what} (at {violation.at_s:.1f} s, {after}, seed {run.script.seed})"


def _reason(row: SentRequest) -> str:
    return f"{row.status or ''} {row.failure}".strip()[:160]


def describe_progress(run: GamedayRun) -> str:
    """Return one line for the progress bar: the current fault, and counts of requests and failures."""
    failed = sum(map(has_failed, run.rows))
    now = "calm" if run.current is None and not run.played else "recovering"
    now = now if run.current is None else f"{run.current.fault}"
    return f"{now:12} {len(run.rows):,} requests, {failed:,} failed"


def json_run(run: GamedayRun, outcomes: Sequence[FaultOutcome], versions: str, when: str) -> dict[str, Any]:
    """Return the report as JSON values, with all requests; after a long day, with those that failed. `script` is a
    game day with the same faults, as a file has it.
    """
    rows = sorted(run.rows, key=lambda one: one.sent_s)
    if len(outcomes) > LONG_DAY:
        rows = [one for one in rows if has_failed(one)]
    return {
        "when": when,
        "versions": versions,
        "script": run.script.model_dump(mode="json", exclude_unset=True),
        "url": run.endpoint.url,
        "interrupted": run.interrupted,
        "holds": run.holds(outcomes),
        "faults": [one._asdict() for one in outcomes],
        "skipped": [fault.fault for fault in run.skipped],
        "violations": [describe_violation(run, one) for one in run.violations],
        "processes": [one._asdict() for one in run.sizes],
        "requests": [msgspec.structs.asdict(one) for one in rows],
    }
