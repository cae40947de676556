"""What a running router tells of its policies and its experiment, as tables and lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

MISSING = "-"
SHARES = frozenset({"hit_share", "error_rate"})
COLOURS = {"better": "green", "worse": "red"}

Told = Mapping[str, Any]


def policies(told: Told) -> RenderableType:
    table = Table(box=box.SIMPLE)
    for column in ("policy", "digest", "role", "share"):
        table.add_column(column, no_wrap=True)
    for policy in told["policies"]:
        name = str(policy["name"])
        share = told["arms"].get(name)
        out = " (rolled back)" if name in told["rolled_back"] else ""
        table.add_row(
            escape(name),
            policy["digest"],
            (policy["role"] or MISSING) + out,
            MISSING if share is None else f"{share:g}%",
        )
    return Group(table, *_lines(_troubles(told)))


def _troubles(told: Told) -> Iterator[str]:
    for source, failure in told["errors"].items():
        yield f"[red]{source}: not taken over since {when(failure['at_wall_s'])}: {escape(failure['text'])}[/]"
    if told["needs_restart"]:
        yield f"[yellow]changed in the file, and need a restart: {escape(', '.join(told['needs_restart']))}[/]"
    if told["audit"]["trouble"]:
        yield f"[red]audit log: {told['audit']['waiting']} entries wait: {escape(told['audit']['trouble'])}[/]"
    if told["undo"]:
        yield f"undo would take back: {escape(told['undo'][0])}"


def switch(told: Told) -> RenderableType:
    done = "would" if told["dry_run"] else "done"
    lines = [f"[bold]{done}: {escape(told['what'])}[/]" if told["changed"] else f"[bold]{escape(told['what'])}[/]"]
    if told["plan"] is not None:
        lines += [escape(sentence) for sentence in told["plan"]["sentences"]]
    lines += [escape(note) for note in told["notes"]]
    return Group(*_lines(lines))


def audit(told: Told) -> RenderableType:
    table = Table(box=box.SIMPLE)
    for column in ("when", "who", "what", "plan, or why"):
        table.add_column(column, no_wrap=column == "when")
    for entry in told["entries"]:
        why = entry.get("why") or "; ".join((entry.get("plan") or [])[:1]) or MISSING
        what = entry["what"] + (f" {entry['arm']}" if entry.get("arm") else "")
        table.add_row(when(entry["at_wall_s"]), escape(entry["who"]), escape(what), escape(why))
    return table


def experiment(told: Told) -> RenderableType:
    if not told["running"]:
        last = told["last"]
        if last is None:
            return Text("no experiment is running")
        ended = f"no experiment is running; the last one ended {when(last['ended_at_wall_s'])}:"
        return Group(Text(ended), _trial(last))
    return _trial(told)


def _trial(told: Told) -> RenderableType:
    report = told["report"]
    first = report["arms"][0]["arm"]
    arms = Table(box=box.SIMPLE)
    for column in ("arm", "share", "units over", "open", "requests", "failed", "spread"):
        arms.add_column(column, justify="left" if column == "arm" else "right")
    for arm in report["arms"]:
        spread = MISSING if arm["spread"] is None else f"{arm['spread']:.2f}x"
        counts = [f"{arm[key]:,}" for key in ("units_closed", "units_open", "requests", "failed")]
        gone = " (out)" if arm["out"] else ""
        arms.add_row(escape(arm["arm"]) + gone, f"{arm['share']:g}%", *counts, spread)
    said = [escape(sentence) for sentence in told["sentences"] if " is out: " in sentence]
    said += [f"[yellow]{escape(warning)}[/]" for warning in report["warnings"]]
    return Group(arms, _metrics(report, first), *([_shadows(told)] if told["shadows"] else []), *_lines(said))


def _metrics(report: Told, first: str) -> Table:
    table = Table(box=box.SIMPLE, title=f"against {escape(first)}; intervals hold at every look", title_justify="left")
    for column in ("metric", "arm", "estimate", "interval", "verdict"):
        table.add_column(column)
    for i, standing in enumerate(report["arms"][0]["standings"]):
        for arm in report["arms"]:
            mine = arm["standings"][i]
            name = standing["metric"] if arm is report["arms"][0] else ""
            interval = f"{figure(mine['low'], mine['metric'])} to {figure(mine['high'], mine['metric'])}"
            table.add_row(name, escape(arm["arm"]), figure(mine["estimate"], mine["metric"]), interval, _verdict(mine))
    return table


def _verdict(standing: Told) -> str:
    verdict = standing["verdict"]
    if verdict is None:
        return MISSING
    if verdict in COLOURS:
        return f"[{COLOURS[verdict]}]{verdict}[/]"
    needed = standing["requests_needed"]
    return str(verdict) if needed is None else f"{verdict}: about {needed:,} more requests"


def _shadows(told: Told) -> Table:
    table = Table(box=box.SIMPLE, title="shadows, by prediction", title_justify="left")
    for column in ("shadow", "decisions", "agree", "TTFT", "cached tokens", "spread made", "spread own"):
        table.add_column(column, justify="left" if column == "shadow" else "right")
    for shadow in told["shadows"]:
        out = f" (out: {escape(shadow['out'])})" if shadow["out"] else ""
        table.add_row(
            escape(shadow["policy"]) + out,
            f"{shadow['decisions']:,}",
            _of(shadow["agreement"], "{:.1%}"),
            _of(shadow["ttft_ms"], "{:+.1f} ms"),
            _of(shadow["overlap_tokens"], "{:+.0f}"),
            _of(shadow["uneven_made"], "{:.2f}x"),
            _of(shadow["uneven_other"], "{:.2f}x"),
        )
    return table


def figure(value: float | str | None, metric: str) -> str:
    """`infinite` comes as text: of times, that no answer came."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return "no answer"
    return f"{value:.1%}" if metric in SHARES else f"{value:,.0f} ms"


def when(at_wall_s: float) -> str:
    return datetime.fromtimestamp(at_wall_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _of(value: float | None, form: str) -> str:
    return MISSING if value is None else form.format(value)


def _lines(lines: Iterator[str] | list[str]) -> list[Text]:
    return [Text.from_markup(line) for line in lines]
