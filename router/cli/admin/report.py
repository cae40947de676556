"""Answers of the admin API about policies, experiments and tenants: tables and lines for a terminal, and a chart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from router.cli.terminal.drawing import FAINT, INK, bare, canvas, label, save
from router.cli.terminal.output import MISSING, Grid, GridEntry, make_grid, render
from router.errors import quote_name

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SHARES = frozenset({"hit_share", "error_rate"})
VERDICT_STYLES = {"better": "green", "worse": "red"}
COLOURS = {"better": "#2f8f5b", "worse": "#c0392b"}
FIRST_ARM = "#2f6f9f"
USED = ("requests", "input_tokens", "cached_tokens", "output_tokens")

Answer = Mapping[str, Any]


def show_policies(answer: Answer) -> RenderableType:
    """Return a row per policy of `GET /admin/policies`, and a line per problem."""
    rows = []
    for policy in answer["policies"]:
        name, share = str(policy["name"]), answer["arms"].get(policy["name"])
        out = " (rolled back)" if name in answer["rolled_back"] else ""
        rows.append((name, policy["digest"], (policy["role"] or MISSING) + out, _format(share, "{:g}%")))
    grid = make_grid("", ("policy", "digest", "role", "share"), rows, labels=4)
    return Group(render(grid), *_lines(_problems(answer)))


def _problems(answer: Answer) -> Iterator[str]:
    for source, failure in answer["errors"].items():
        since = format_time(failure["at_wall_s"])
        yield f"[red]{escape(source)}: not in force since {since}: {escape(failure['text'])}[/]"
    if answer["needs_restart"]:
        yield f"[yellow]changed in the file, needs a restart: {escape(', '.join(answer['needs_restart']))}[/]"
    if answer["audit"]["trouble"]:
        waiting = answer["audit"]["waiting"]
        yield f"[red]audit log: {waiting} entries not written yet: {escape(answer['audit']['trouble'])}[/]"
    if answer["undo"]:
        yield f"undo would take back: {escape(answer['undo'][0])}"


def show_switch(answer: Answer) -> RenderableType:
    """Return the report of a switch, or of its dry run, with its plan and notes."""
    done = "would" if answer["dry_run"] else "done"
    what = escape(answer["what"])
    lines = [f"[bold]{done}: {what}[/]" if answer["changed"] else f"[bold]{what}[/]"]
    if answer["plan"] is not None:
        lines += [escape(sentence) for sentence in answer["plan"]["sentences"]]
    return Group(*_lines([*lines, *map(escape, answer["notes"])]))


def show_audit(answer: Answer) -> RenderableType:
    """Return a row per switch of `GET /admin/audit`."""
    rows = []
    for entry in answer["entries"]:
        why = entry.get("why") or "; ".join((entry.get("plan") or [])[:1]) or MISSING
        what = entry["what"] + (f" {entry['arm']}" if entry.get("arm") else "")
        who = entry["who"] + (f" at {entry['replica']}" if entry.get("replica") else "")
        changes = "; ".join(entry.get("changes") or []) or MISSING
        rows.append((format_time(entry["at_wall_s"]), who, what, changes, why))
    return render(make_grid("", ("when", "who", "what", "changes", "plan or reason"), rows, labels=5))


def show_experiment(answer: Answer) -> RenderableType:
    """Return the running experiment, or else the last one, as tables with warnings below them, followed by the same
    for each split of models.
    """
    models = [(Text(f"\nmodel {alias}"), _experiment(split)) for alias, split in answer.get("models", {}).items()]
    return Group(_policies_experiment(answer), *(part for parts in models for part in parts))


def _policies_experiment(answer: Answer) -> RenderableType:
    if answer["running"]:
        return _experiment(answer)
    last = answer["last"]
    if last is None:
        return Text("no experiment is running")
    ended = f"no experiment is running; the last one ended {format_time(last['ended_at_wall_s'])}:"
    return Group(Text(ended), _experiment(last))


def _experiment(answer: Answer) -> RenderableType:
    report = answer["report"]
    grids = [_arms(report), _metrics_grid(report), *([_shadows(answer)] if answer["shadows"] else [])]
    lines = [escape(sentence) for sentence in answer["sentences"] if " is out: " in sentence]
    lines += [f"[yellow]{escape(warning)}[/]" for warning in report["warnings"]]
    return Group(*map(render, grids), *_lines(lines))


def _arms(report: Answer) -> Grid:
    rows = []
    for arm in report["arms"]:
        counts = [f"{arm[key]:,}" for key in ("units_closed", "units_open", "requests", "failed")]
        out = " (out)" if arm["out"] else ""
        rows.append((_arm_name(arm) + out, f"{arm['share']:g}%", *counts, _format(arm["spread"], "{:.2f}x")))
    return make_grid("", ("arm", "share", "units over", "open", "requests", "failed", "spread"), rows)


def _arm_name(arm: Answer) -> str:
    """Return the arm's name, with its model, or with its policy and admission rule if the arm names them."""
    if arm.get("model") is not None:
        at = "" if arm["revision"] is None else f" at {arm['revision']}"
        return f"{arm['arm']} ({arm['model']}{at})"
    policy = None if arm["policy"] == arm["arm"] else arm["policy"]
    named = [name for name in (policy, arm["admission"]) if name is not None]
    return f"{arm['arm']} ({', '.join(named)})" if named else str(arm["arm"])


def _metrics_grid(report: Answer) -> Grid:
    rows = []
    for i, first in enumerate(report["arms"][0]["standings"]):
        for arm in report["arms"]:
            own, metric = arm["standings"][i], first["metric"]
            interval = f"{format_figure(own['low'], metric)} to {format_figure(own['high'], metric)}"
            name = metric if arm is report["arms"][0] else ""
            rows.append((name, arm["arm"], format_figure(own["estimate"], metric), interval, _verdict(own)))
    title = f"against {report['arms'][0]['arm']}; intervals hold at every look"
    return make_grid(title, ("metric", "arm", "estimate", "interval", "verdict"), rows, labels=5)


def _verdict(standing: Answer) -> GridEntry:
    verdict, needed = standing["verdict"], standing["requests_needed"]
    if verdict is None or verdict in VERDICT_STYLES:
        return GridEntry(verdict or MISSING, colour=VERDICT_STYLES.get(verdict))
    return GridEntry(verdict if needed is None else f"{verdict}: about {needed:,} more requests")


def _shadows(answer: Answer) -> Grid:
    rows = [
        (
            shadow["policy"] + (f" (out: {shadow['out']})" if shadow["out"] else ""),
            f"{shadow['decisions']:,}",
            _format(shadow["agreement"], "{:.1%}"),
            _format(shadow["ttft_ms"], "{:+.1f} ms"),
            _format(shadow["overlap_tokens"], "{:+.0f}"),
            _format(shadow["uneven_made"], "{:.2f}x"),
            _format(shadow["uneven_other"], "{:.2f}x"),
        )
        for shadow in answer["shadows"]
    ]
    heads = ("shadow", "decisions", "agree", "TTFT", "cached tokens", "spread made", "spread own")
    return make_grid("shadows, by prediction", heads, rows)


def format_figure(value: float | str | None, metric: str) -> str:
    """Return a metric's value with its unit. The API reports infinity as text: an infinite time means that no
    answer came; an infinite length is the unknown end of an interval.
    """
    if value is None:
        return MISSING
    if isinstance(value, str):
        return "any" if metric == "output_p50" else "no answer"
    return f"{value:.1%}" if metric in SHARES else f"{value:,.0f} {'tokens' if metric == 'output_p50' else 'ms'}"


def format_time(at_wall_s: float) -> str:
    """Return Unix time `at_wall_s` in UTC, to the second."""
    return datetime.fromtimestamp(at_wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _format(value: float | None, form: str) -> str:
    return MISSING if value is None else form.format(value)


def _lines(lines: Iterator[str] | list[str]) -> list[Text]:
    return [Text.from_markup(line) for line in lines]


def experiment_chart(experiment: Mapping[str, Any], when: str, file: Path) -> None:
    """Draw an answer of `GET /admin/experiment` to `file`. Raises WarmrouteError when it cannot be written."""
    arms = experiment["report"]["arms"]
    metrics = [standing["metric"] for standing in arms[0]["standings"]]
    chart = canvas(8.6, 0.9 + len(metrics) * (0.5 + 0.3 * len(arms)))
    rows = chart.subplots(len(metrics), 1, squeeze=False)[:, 0]
    for i, axes in enumerate(rows):
        _metric(axes, metrics[i], [(arm["arm"], arm["standings"][i]) for arm in arms])
    shares = ", ".join(f"{arm['arm']} {arm['share']:g}%" for arm in arms)
    chart.suptitle(f"{shares}\n{when}; intervals hold at every look", color=INK, fontsize=9, x=0.01, ha="left")
    save(chart, file)


def _metric(axes: Axes, metric: str, standings: list[tuple[str, Mapping[str, Any]]]) -> None:
    """Draw one row per arm, from 0 on. An interval without a finite end runs off the chart; text gives the
    estimate.
    """
    scale = 100.0 if metric in SHARES else 1.0
    figures = [[_number(own[key], scale) for key in ("low", "estimate", "high")] for _, own in standings]
    right = 1.08 * max((value for row in figures for value in row if value is not None and value < inf), default=1.0)
    right = right or 1.0
    for row, ((_, standing), (low, middle, high)) in enumerate(zip(standings, figures, strict=True)):
        colour = FIRST_ARM if standing["verdict"] is None else COLOURS.get(standing["verdict"], FAINT)
        if low is not None and high is not None:
            ends = [min(low, right), min(high, right)]
            axes.plot(ends, [row, row], color=colour, lw=5, alpha=0.35, solid_capstyle="butt")
        if middle is not None and middle < inf:
            axes.plot([middle], [row], "o", ms=6, color=colour)
        text = f"  {format_figure(standing['estimate'], metric)}  {standing['verdict'] or ''}"
        axes.text(1.0, row, text, transform=axes.get_yaxis_transform(), va="center", color=colour, fontsize=8)
    axes.set_yticks(range(len(standings)), [name for name, _ in standings])
    axes.set_ylim(len(standings) - 0.5, -0.5)
    axes.set_xlim(0, right)
    label(axes, f"{metric} ({'%' if metric in SHARES else 'ms'})", size=9)
    bare(axes, 8, "x")
    axes.spines["left"].set_visible(False)


def _number(value: float | str | None, scale: float) -> float | None:
    """Return an estimate in the chart's unit; the API reports infinity as text."""
    return inf if isinstance(value, str) else None if value is None else value * scale


def show_usage(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Return a row per day, tenant and model of `GET /admin/usage`."""
    table = Table("day", "tenant", "model")
    for title in ("requests", "input", "cached", "output", "GPU s", "refused"):
        table.add_column(title, justify="right")
    totals: dict[str, float] = defaultdict(float)
    for row in rows:
        refused = ", ".join(f"{reason} {count:,}" for reason, count in sorted(row["refused"].items()))
        numbers = (f"{row[name]:,}" for name in USED)
        names = (row["day"], quote_name(row["tenant"]), quote_name(row["model"]) or "-")
        table.add_row(*names, *numbers, f"{row['gpu_s']:,.1f}", refused or "-")
        for name in (*USED, "gpu_s"):
            totals[name] += row[name]
    if len(rows) > 1:
        table.add_section()
        numbers = (f"{totals[name]:,.0f}" for name in USED)
        table.add_row("all", "", "", *numbers, f"{totals['gpu_s']:,.1f}", "")
    return table
