"""A replay as tables for the terminal, with conclusions and failures as lines below them, and as a chart."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from math import floor
from pathlib import Path
from typing import TYPE_CHECKING

from rich.markup import escape

from router.cli.terminal.drawing import EDGE, INK, bare, canvas, draw_bars, label, save, write_heading
from router.cli.terminal.output import MISSING, Grid, GridEntry, make_grid
from router.lab.replay.contender import ContenderResult
from router.lab.replay.replay import ReplayReport, ReproductionResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NEUTRAL, BETTER, WORSE = "#9aa3af", "#2f6f9f", "#e8963a"


def reproduced_table(report: ReplayReport) -> Grid:
    """Return a row per policy of the log: how many of its choices came out the same."""
    rows: list[list[str | GridEntry]] = []
    for one in report.reproduced:
        share = GridEntry(share_of(one.same, one.choices), colour=None if one.whole else "red")
        rows.append([one.policy, one.digest, f"{one.choices:,}", f"{one.same:,}", share])
    heads = ("policy", "digest", "choices", "the same", "share")
    return make_grid("Policies of the log, deciding again", heads, rows, labels=2)


def contended_table(report: ReplayReport) -> Grid:
    """Return a row per other policy: how its choices differ from those that were made."""
    rows: list[list[str | GridEntry]] = [
        [
            mark_partial(one),
            f"{one.choices:,}",
            share_of(one.agreed, one.choices),
            _signed(one.ttft_ms, 1),
            _range(one),
            _signed(one.overlap_tokens, 0),
            MISSING if one.uneven is None else f"{one.uneven:.2f} ({one.uneven_made:.2f})",
            GridEntry(f"{one.failed:,}", colour="red" if one.failed else None),
        ]
        for one in report.contended
    ]
    heads = ("policy", "choices", "agree", "TTFT ms", "where not (p10, p90)", "cached tokens", "spread (was)", "fails")
    return make_grid("Other policies, on the first choice of each request", heads, rows)


def remarks(report: ReplayReport) -> list[str]:
    """Return conclusions and failures, one line each, as markup."""
    if not report.records:
        return ["The log holds no records."]
    lines = []
    different = [one for one in report.reproduced if not one.whole]
    if report.choices and not different:
        lines.append(f"Every logged choice came out the same: {report.same:,} of {report.choices:,} (100 %).")
    for one in different:
        lines += _differences(one)
    if report.unplaced:
        lines.append(f"{report.unplaced:,} of {report.records:,} requests were never placed: nothing to decide again.")
    return lines + _of_contenders(report)


def _of_contenders(report: ReplayReport) -> list[str]:
    some = report.contended
    lines = [f"[red]{escape(one.policy)} fails, first: {escape(one.fault)}[/]" for one in some if one.fault]
    lines += [
        f"[yellow]{escape(one.policy)}: {one.blind:,} of {one.choices:,} choices are of requests whose cache overlaps "
        "were not looked up, because no policy in force needed them: there it had to decide without.[/]"
        for one in some
        if one.blind
    ]
    lines += [
        f"[yellow]{escape(one.policy)}: {one.partial:,} of {one.choices:,} choices are partly seen: for a large fleet "
        "the log holds only the candidates that could win by a policy then in use, and this policy had to choose among "
        "these. So it may seem to agree more, and to spread requests less evenly, than it would.[/]"
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
            f"Accuracy of the predictions: for the targets chosen, {report.predicted_ms:.0f} ms to the first token "
            f"were predicted on average, and {report.measured_ms:.0f} ms were measured."
        )
    return lines


def mark_partial(one: ContenderResult) -> str:
    """Return the policy's name, marked if the log did not hold all candidates of its choices."""
    return f"{one.policy} (partly seen)" if one.partial else one.policy


def share_of(part: int, whole: int) -> str:
    """Return `part` of `whole` in percent, rounded down: never 100 while one is missing."""
    return f"{floor(10_000 * part / whole) / 100:g} %" if whole else MISSING


def _differences(one: ReproductionResult) -> list[str]:
    name = escape(f"{one.policy} ({one.digest})" if one.digest else one.policy)
    if one.unbuilt is not None:
        return [f"[red]{name}: {one.choices:,} choices could not be made again: {escape(one.unbuilt)}[/]"]
    colour = "yellow" if one.learns else "red"
    lines = [f"[{colour}]{name}: {one.choices - one.same:,} of {one.choices:,} choices came out different:[/]"]
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


def draw(report: ReplayReport, file: Path) -> None:
    """Draw four panels with a row per contender to `file`; blue is better than what was done, orange is worse.

    At least one contender must have a choice. Raises WarmrouteError when the file cannot be written.
    """
    some = [one for one in report.contended if one.choices]
    figure = canvas(11.0, 1.9 + 0.42 * len(some))
    agree, waits, found, spread = figure.subplots(1, 4, sharey=True)
    names = [mark_partial(one) for one in some]

    shares = [100 * (one.agreement or 0.0) for one in some]
    _bars(agree, names, shares, [NEUTRAL] * len(some), [share_of(one.agreed, one.choices) for one in some])
    label(agree, "the same choice", "% of requests", size=9)

    times = [one.ttft_ms or 0.0 for one in some]
    _bars(waits, names, times, [WORSE if ms > 0 else BETTER for ms in times], [f"{ms:+,.1f}" for ms in times])
    label(waits, "predicted TTFT", "ms per request, against what was done", size=9)

    known = [(mark_partial(one), one.overlap_tokens) for one in some if one.overlap_tokens is not None]
    tokens = [value for _, value in known]
    colours = [BETTER if value > 0 else WORSE for value in tokens]
    _bars(found, [name for name, _ in known], tokens, colours, [f"{value:+,.0f}" for value in tokens])
    label(found, "cached prompt tokens", "per request, against what was done", size=9)

    uneven = [one.uneven or 0.0 for one in some]
    _bars(spread, names, uneven, [NEUTRAL] * len(some), [f"{value:.2f}" for value in uneven])
    if (before := some[0].uneven_made) is not None:
        spread.axvline(before, color=INK, lw=1, ls=(0, (4, 3)))
        label(spread, f"load spread (dashed: was {before:.2f})", "busiest target / mean, in requests", size=9)
    agree.invert_yaxis()  # shared by all four
    write_heading(figure, _heading(report))
    save(figure, file)


def _bars(
    axes: Axes, names: Sequence[str], values: Sequence[float], colours: Sequence[str], texts: Sequence[str]
) -> None:
    draw_bars(axes, names, values, colours, texts)
    axes.margins(x=0.3)
    axes.locator_params(axis="x", nbins=4)
    if min(values, default=0.0) >= 0:
        axes.set_xlim(left=0)
    axes.axvline(0, color=EDGE, lw=0.8)
    bare(axes, 8)


def _heading(report: ReplayReport) -> str:
    title = f"{report.records:,} logged requests, decided again"
    if report.first_wall_s is None or report.last_wall_s is None:
        return title
    begin, end = (datetime.fromtimestamp(at, UTC) for at in (report.first_wall_s, report.last_wall_s))
    return f"{title} ({begin:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC)"
