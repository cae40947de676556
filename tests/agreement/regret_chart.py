"""The grid as a chart: for each arm how far it stays behind, cell by cell, in throughput and in p90 TTFT.

One dot per cell, arms in the order of their standing, the bars as lines: an arm that is near the best everywhere has
all its dots at the left, and whoever is lost in one regime shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from router.cli.terminal.drawing import FAINT, INK, bare, canvas, require, save
from tests.agreement.cells import Cell
from tests.agreement.kinds import FAMILIES, family
from tests.agreement.regret import NEAR, WORST, Regret, standings

COLOURS = dict(zip(FAMILIES, ("#2f6f9f", "#c2853d", "#8a6bb0", "#4c9a6a"), strict=True))
MOST_LOSS, MOST_EXCESS = 0.6, 5.0


def draw(found: Sequence[Regret], cells: Sequence[Cell], file: Path) -> None:
    """Of these cells alone. Raises NoCharts without matplotlib."""
    require()
    families = {cell.name: family(cell.workload) for cell in cells}
    shown = [regret for regret in found if regret.cell in families]
    if not shown:
        return
    order = [standing.arm for standing in standings(shown)]
    figure = canvas(9.6, 1.5 + 0.27 * len(order))
    losses, excesses = figure.subplots(1, 2, sharey=True)
    for number, (name, colour) in enumerate(COLOURS.items()):
        its = [regret for regret in shown if families[regret.cell] == name]
        rows = [order.index(regret.arm) + 0.18 * (number - 1.5) for regret in its]
        dots = {"s": 12, "color": colour, "alpha": 0.55, "linewidths": 0, "label": name}
        losses.scatter([100 * min(regret.loss, MOST_LOSS) for regret in its], rows, **dots)
        excesses.scatter([100 * min(max(regret.excess, 0), MOST_EXCESS) for regret in its], rows, **dots)
    for axes, near, worst in ((losses, NEAR.loss, WORST.loss), (excesses, NEAR.excess, WORST.excess)):
        axes.axvline(100 * near, color=INK, lw=0.8)
        axes.axvline(100 * worst, color=INK, lw=0.8, ls=":")
        bare(axes, 7.5, "x")
        axes.spines["left"].set_visible(False)
    excesses.set_xscale("symlog", linthresh=20)
    excesses.set_xticks([0, 10, 20, 50, 100, 200, 500], ["0", "10", "20", "50", "100", "200", "≥ 500"])
    losses.set_yticks(range(len(order)), order)
    losses.set_ylim(len(order) - 0.4, -0.6)
    losses.set_xlabel("% of the best throughput lost", color=FAINT, fontsize=8)
    excesses.set_xlabel("% of p90 TTFT over the best (bar: full line; never beyond: dotted)", color=FAINT, fontsize=8)
    figure.legend(*losses.get_legend_handles_labels(), loc="outside upper right", ncols=4, frameon=False, fontsize=7.5)
    figure.suptitle("Each dot a cell: how far each policy stays behind the best one", fontsize=9, color=INK, x=0.24)
    save(figure, file)
