"""The comparison as a chart: for each load the P90 of the time to the first token with every router that has played."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router.cli.terminal.drawing import FAINT, INK, bare, canvas, label, save
from tests.headtohead.comparison import by_router, median_figure
from tests.headtohead.contenders import CONTENDERS, OURS
from tests.headtohead.loads import Load
from tests.headtohead.match import Match

OURS_COLOUR = "#b3261e"
COLOURS = ("#2f6f9f", "#c2853d", "#8a6bb0", "#4c9a6a", FAINT, "#5aa9b8", "#9c755f")  # by program
MARKS = "osDv^"  # by policy of a program


def draw(loads: Sequence[Load], matches: Sequence[Match], file: Path) -> None:
    """Draw the medians over the seeds; a load without matches has no row. Raises OSError for a file that cannot be
    written.
    """
    played = {load.name: found for load in loads if (found := by_router(matches, load.name))}
    names = [one.name for one in CONTENDERS if any(one.name in found for found in played.values())]
    figure = canvas(9.6, 1.3 + 0.34 * len(played))
    axes = figure.subplots()
    for name, (colour, mark) in zip(names, _styles(names), strict=True):
        points = [
            (seconds, row)
            for row, found in enumerate(played.values())
            if (seconds := median_figure(found.get(name, {}), "ttft_p90_s")) is not None
        ]
        ours = {"s": 90, "zorder": 3} if name == OURS else {"s": 34, "alpha": 0.8}
        plain = name.replace("`", "")
        axes.scatter(*zip(*points, strict=True), color=colour, marker=mark, linewidths=0, label=plain, **ours)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_yticks(range(len(played)), played)
    axes.invert_yaxis()
    bare(axes, 8, "both")
    label(axes, x="time to the first token, P90, s", size=9)
    figure.legend(loc="outside right upper", frameon=False, fontsize=7.5, labelcolor=INK)
    save(figure, file)


def _styles(names: Sequence[str]) -> Sequence[tuple[str, str]]:
    """Return colour and mark of each router: a program has one colour, its policies have different marks."""
    programs = list(dict.fromkeys(name.split()[0] for name in names if name != OURS))
    seen: dict[str, int] = {}
    styles = []
    for name in names:
        program = name.split()[0]
        seen[program] = seen.get(program, -1) + 1
        colour = OURS_COLOUR if name == OURS else COLOURS[programs.index(program) % len(COLOURS)]
        styles.append((colour, "*" if name == OURS else MARKS[seen[program] % len(MARKS)]))
    return styles
