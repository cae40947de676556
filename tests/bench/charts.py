"""The benchmark as charts: how far each figure is from its bar, and CPU time beside the peers'."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from router.cli.terminal.drawing import FAINT, INK, bare, canvas, require, save
from tests.bench.figures import Line, spread
from tests.bench.results import Outcome
from tests.bench.tables import bar_text

MET, MISSED = "#2f6f9f", "#c2553d"
OURS, THEIRS = "#2f6f9f", "#9aa3af"


def draw(outcomes: Sequence[Outcome], folder: Path) -> None:
    """Draw both charts, where there is something to draw. Raises ExtraMissing without matplotlib."""
    require()
    lines = _lines(outcomes)
    if any(share_of_bar(line) is not None for line in lines):
        bars_chart(outcomes, folder / "bench-bars.png")
    if any(_comparable(line) for line in lines):
        peers_chart(outcomes, folder / "bench-peers.png")


def bars_chart(outcomes: Sequence[Outcome], file: Path) -> None:
    """Draw each judged line as a share of its bar, on a logarithmic axis: left of the line the bar is met.

    Shadows are only in the table: there are as many of them as of all others.
    """
    others = [outcome for outcome in outcomes if outcome.row != "decisions"]
    judged = [(line, share) for line in _lines(others) if (share := share_of_bar(line)) is not None]
    figure = canvas(9.0, 1.4 + 0.3 * len(judged))
    axes = figure.add_subplot()
    for row, (line, share) in enumerate(judged):
        axes.barh(row, share - 1, left=1, height=0.6, color=MET if line.met else MISSED)
        values = line.ratios if line.bar is not None and line.bar.of == "ratio" else line.ours
        text = f"{spread(values)}, bar {bar_text(line)}"
        axes.annotate(text, (max(1, share), row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=6.5,
                      color=INK)  # fmt: skip
    axes.set_yticks(range(len(judged)), [f"{line.what}, {line.unit}" for line, _ in judged], fontsize=7)
    axes.set_ylim(len(judged) - 0.3, -0.7)
    axes.set_xscale("log")
    axes.axvline(1, color=INK, lw=1)
    low, high = (pick([share for _, share in judged] or [1.0]) for pick in (min, max))
    axes.set_xlim(min(0.5, low) / 1.5, max(2.0, high) * 20)
    axes.set_xlabel("share of the bar (1: the bar itself; left of it is met)", color=FAINT)
    bare(axes, 7, "x")
    axes.spines["left"].set_visible(False)
    figure.suptitle(_title("Measured against the bars", outcomes), fontsize=10, color=INK)
    save(figure, file)


def share_of_bar(line: Line) -> float | None:
    """Return the share, below 1 where the bar is met; `None` without bar or value. A share of 0 is drawn as 0.01."""
    if line.bar is None or (value := line.judged) is None or not line.bar.limit:
        return None
    share = value / line.bar.limit if line.bar.sense == "<=" else line.bar.limit / value if value else 100.0
    return max(share, 0.01)


def peers_chart(outcomes: Sequence[Outcome], file: Path) -> None:
    """Draw every line that has a peer, both as a share of the peer's median."""
    pairs = [line for line in _lines(outcomes) if _comparable(line)]
    figure = canvas(8.4, 1.4 + 0.42 * len(pairs))
    axes = figure.add_subplot()
    for row, line in enumerate(pairs):
        theirs = statistics.median(line.theirs)
        for offset, values, colour in ((-0.2, line.ours, OURS), (0.2, line.theirs, THEIRS)):
            share = statistics.median(values) / theirs
            axes.barh(row + offset, share, height=0.36, color=colour)
            axes.text(share, row + offset, f" {spread(values)}", va="center", fontsize=7, color=INK)
    axes.set_yticks(range(len(pairs)), [f"{line.what}, {line.unit}\nbeside {line.peer}" for line in pairs], fontsize=7)
    axes.set_ylim(len(pairs) - 0.3, -0.7)
    axes.margins(x=0.25)
    axes.set_xlabel("share of the peer's median (blue: Warmroute)", color=FAINT)
    bare(axes, 7, "x")
    axes.spines["left"].set_visible(False)
    figure.suptitle(_title("Beside its peers, in the same run", outcomes), fontsize=10, color=INK)
    save(figure, file)


def _comparable(line: Line) -> bool:
    return bool(line.ours) and bool(line.theirs) and statistics.median(line.theirs) > 0


def _lines(outcomes: Sequence[Outcome]) -> list[Line]:
    return [line for outcome in outcomes for line in outcome.lines]


def _title(text: str, outcomes: Sequence[Outcome]) -> str:
    last = max(outcomes, key=lambda outcome: outcome.ended)
    return f"{text}\n{last.ended[:10]}, {last.machine}"
