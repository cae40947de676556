"""A comparison as one self-contained HTML page: the command that made it, tables, and charts as inline SVG.

It looks the same opened from a disk or sent by mail: no scripts, no fonts, no network.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from router.cli.terminal.output import Grid, GridEntry

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #22272e; max-width: 78rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem }
pre { background: #f3f4f6; padding: .7rem 1rem; overflow-x: auto; border-radius: .3rem; white-space: pre-wrap }
.wide { overflow-x: auto } svg { max-width: 100%; height: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .86rem }
th, td { padding: .2rem .6rem; text-align: right; white-space: nowrap }
th:first-child, td:first-child { text-align: left }
thead th { border-bottom: 1px solid #9aa3af; color: #6b7280; font-weight: 500 }
tbody tr:nth-child(even) { background: #f8f9fa } .best { font-weight: 700; color: #2f6f9f }
""".strip()


class ResultPage(NamedTuple):
    """The results of a run, for the terminal and for the page."""

    command_line: str
    comparisons: tuple[Grid, ...]
    capacities: tuple[Grid, ...]
    remarks: tuple[str, ...]


def html(page: ResultPage, charts: Sequence[str]) -> str:
    """Return the page; `charts` are SVG documents."""
    parts = [f"<h1>Policies in virtual time</h1>\n<pre>{escape(page.command_line)}</pre>"]
    parts += [f"<p>{escape(line)}</p>" for line in page.remarks]
    parts += [f'<div class="chart">{chart[chart.index("<svg") :]}</div>' for chart in charts]
    parts += [_table(grid) for grid in (*page.comparisons, *page.capacities)]
    body = "\n".join(parts)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head><meta charset="utf-8"><title>warmroute simulate</title>\n'
        f"<style>\n{STYLE}\n</style></head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _table(grid: Grid) -> str:
    heads = "".join(f"<th>{escape(head)}</th>" for head in grid.heads)
    rows = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in grid.rows)
    return (
        f'<h2>{escape(grid.title)}</h2>\n<div class="wide"><table>\n<thead><tr>{heads}</tr></thead>\n'
        f"<tbody>\n{rows}\n</tbody>\n</table></div>"
    )


def _cell(entry: GridEntry) -> str:
    return f'<td class="best">{escape(entry.text)}</td>' if entry.best else f"<td>{escape(entry.text)}</td>"
