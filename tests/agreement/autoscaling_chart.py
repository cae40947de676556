"""Rules for the size of a fleet as points: what they cost, and what they miss. The best are at the lower left."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from router.cli.terminal.drawing import FAINT, INK, bare, canvas, label, plain_numbers, require, save, write_heading

COLOURS = {"router": "#2f6f9f", "queue": "#c2853d", "usage": "#4c9a6a", "fixed": "#6b7280"}


def draw(points: Mapping[str, Mapping[str, tuple[float, float]]], judged: str, file: Path) -> None:
    """Draw a panel per load with (instance-hours, share missed) of each rule. Raises ExtraMissing."""
    require()
    figure = canvas(9.6, 4.2)
    for axes, (load, rules) in zip(figure.subplots(1, len(points)), points.items(), strict=True):
        for family, colour in COLOURS.items():
            mine = family == judged
            own = [(rule, *at) for rule, at in rules.items() if (rule == judged if mine else rule.startswith(family))]
            hours, missed = [at for _, at, _ in own], [100 * share for _, _, share in own]
            line = ":" if family in ("queue", "usage") else ""
            axes.plot(hours, missed, "*" if mine else "o", ls=line, lw=1, ms=13 if mine else 6, color=colour)
            for (rule, _, _), x, y in zip(own, hours, missed, strict=True):
                axes.annotate(rule, (x, y), xytext=(6, 4), textcoords="offset points", fontsize=7, color=INK)
        axes.set_yscale("log")
        plain_numbers(axes.yaxis)
        axes.margins(x=0.25, y=0.12)
        bare(axes, 8, "both")
        label(axes, load, x="instance-hours", size=9)
    figure.axes[0].set_ylabel("% of requests beyond 2 s to the first token", color=FAINT, fontsize=8)
    write_heading(figure, "What each signal costs, and what it misses")
    save(figure, file)
