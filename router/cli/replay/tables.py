"""A replay as tables for the terminal, and what they prove or went wrong as lines below them."""

from __future__ import annotations

from math import floor

from rich import box
from rich.markup import escape
from rich.table import Table

from router.testbed.replay.contender import ContenderResult
from router.testbed.replay.replay import ReplayReport
from router.testbed.replay.reproduction import ReproductionResult

MISSING = "-"


def reproduced_table(report: ReplayReport) -> Table:
    table = Table(title="Who decided, deciding again", box=box.SIMPLE)
    for name in ("policy", "digest"):
        table.add_column(name, no_wrap=True)
    for name in ("choices", "the same", "share"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in report.reproduced:
        share = f"{share_of(one.same, one.choices)}"
        table.add_row(
            escape(one.policy),
            escape(one.digest),
            f"{one.choices:,}",
            f"{one.same:,}",
            share if one.whole else f"[red]{share}[/]",
        )
    return table


def contended_table(report: ReplayReport) -> Table:
    table = Table(title="Who did not decide, on the first choice of each request", box=box.SIMPLE)
    table.add_column("policy", no_wrap=True)
    names = ("choices", "agree", "TTFT ms", "where not (p10, p90)", "cached tokens", "spread (was)", "fails")
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
    for one in report.contended:
        table.add_row(
            escape(marked(one)),
            f"{one.choices:,}",
            share_of(one.agreed, one.choices),
            _signed(one.ttft_ms, 1),
            _range(one),
            _signed(one.overlap_tokens, 0),
            MISSING if one.uneven is None else f"{one.uneven:.2f} ({one.uneven_made:.2f})",
            f"[red]{one.failed:,}[/]" if one.failed else "0",
        )
    return table


def remarks(report: ReplayReport) -> list[str]:
    """As markup."""
    if not report.records:
        return ["The log holds no records."]
    lines = []
    wrong = [one for one in report.reproduced if not one.whole]
    if report.choices and not wrong:
        lines.append(f"Every logged choice came out the same: {report.same:,} of {report.choices:,} (100 %).")
    for one in wrong:
        lines += _differs(one)
    if report.unplaced:
        lines.append(f"{report.unplaced:,} of {report.records:,} requests were never placed: nothing to decide again.")
    return lines + _of_contenders(report)


def _of_contenders(report: ReplayReport) -> list[str]:
    some = report.contended
    lines = [f"[red]{escape(one.policy)} fails, first: {escape(one.fault)}[/]" for one in some if one.fault]
    lines += [
        f"[yellow]{escape(one.policy)}: {one.blind:,} of {one.choices:,} choices are of requests whose caches nobody "
        "looked up, as no policy in force needed it then: there it had to do without.[/]"
        for one in some
        if one.blind
    ]
    lines += [
        f"[yellow]{escape(one.policy)}: {one.partial:,} of {one.choices:,} choices are partly seen: of a large fleet "
        "the log has those who could win by a policy in use then, and it had to choose among these. So it may seem to "
        "agree more, and to spread requests less evenly, than it would.[/]"
        for one in some
        if one.partial
    ]
    if some:
        lines.append(
            "TTFT and cached tokens: means over all choices, by what was known when they were made, compared with the "
            "targets that were chosen (less TTFT is better). Spread: the busiest target's requests over the mean."
        )
    if some and report.predicted_ms is not None:
        lines.append(
            f"How far to believe it: of what was chosen, {report.predicted_ms:.0f} ms to the first token were "
            f"predicted in the mean, {report.measured_ms:.0f} ms were measured."
        )
    return lines


def marked(one: ContenderResult) -> str:
    """Its name, with a word where its figures are not quite its own."""
    return f"{one.policy} (partly seen)" if one.partial else one.policy


def share_of(part: int, whole: int) -> str:
    """In percent; never 100 while one is missing."""
    return f"{floor(10_000 * part / whole) / 100:g} %" if whole else MISSING


def _differs(one: ReproductionResult) -> list[str]:
    name = escape(f"{one.policy} ({one.digest})" if one.digest else one.policy)
    if one.unbuilt is not None:
        return [f"[red]{name}: {one.choices:,} choices could not be made again: {escape(one.unbuilt)}[/]"]
    colour = "yellow" if one.learns else "red"
    lines = [f"[{colour}]{name}: {one.choices - one.same:,} of {one.choices:,} choices came out otherwise:[/]"]
    lines += [
        escape(f"  {first.record} ({first.part}): logged {first.logged}, now {first.replayed}") for first in one.first
    ]
    if one.learns:
        lines.append("  It has a scorer that learns while it runs: what it had learned by then is not in the log.")
    return lines


def _signed(value: float | None, digits: int) -> str:
    return MISSING if value is None else f"{value:+,.{digits}f}"


def _range(one: ContenderResult) -> str:
    if one.ttft_p10_ms is None or one.ttft_p90_ms is None:
        return MISSING
    return f"{one.ttft_p10_ms:+,.0f}, {one.ttft_p90_ms:+,.0f}"
