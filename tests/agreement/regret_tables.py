"""The grid as tables for people: what each arm loses, the judged arm in each cell, and where it is behind most."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tests.agreement.regret import (
    NEAR,
    SHARE,
    WORST,
    Bar,
    CellResult,
    Regret,
    Score,
    Standing,
    regrets,
    results_of,
    standings,
)

WORST_ROWS = 10
"""Of the table of the worst cells."""

NAMED = 12
"""Cells beyond the bar that the verdict names."""


def show(scores: Sequence[Score], thrash: Collection[str], judged: str, console: Console) -> None:
    """`scores`: one per cell and arm. `thrash`: names of the cells that are left out of the bar."""
    fair = [score for score in scores if score.cell not in thrash]
    if fair:
        found, cells = regrets(fair), len({score.cell for score in fair})
        results = results_of(judged, fair)
        console.print(standings_table(standings(found), f"regret over {cells} cells, thrash left out"))
        console.print(cells_table(results, f"{judged} in each cell (bar {_bar(NEAR)})"))
        worst = sorted(results, key=lambda one: -badness(one.regret))[:WORST_ROWS]
        console.print(cells_table(worst, f"the {len(worst)} worst cells of {judged}"))
        console.print(verdict(found, judged), highlight=False)
    lost = regrets(score for score in scores if score.cell in thrash)
    if lost:
        console.print(standings_table(standings(lost), "thrash: only admission helps here"))


def badness(regret: Regret) -> float:
    """How far an arm is behind in multiples of the bar, in throughput or in p90, whichever is more."""
    return max(regret.loss / NEAR.loss, regret.excess / NEAR.excess)


def standings_table(order: Sequence[Standing], title: str) -> Table:
    shown = Table(title=title, box=box.SIMPLE)
    shown.add_column("")
    columns = ("cells", f"within {NEAR.loss:.0%}/{NEAR.excess:.0%}", "worst loss", "worst p90", "sum of throughput",
               "geometric mean of p90")  # fmt: skip
    for column in columns:
        shown.add_column(column, justify="right")
    for one in order:
        shown.add_row(one.arm, str(one.cells), f"{one.within:.0%}", f"{one.worst_loss:.1%}", f"{one.worst_excess:+.0%}",
                      f"{one.throughput:.2f}", f"{one.p90:.2f}")  # fmt: skip
    return shown


def cells_table(results: Sequence[CellResult], title: str) -> Table:
    """Each cell with what the arm reached, the best of all arms, and whether the bar is met."""
    shown = Table(title=title, box=box.SIMPLE)
    shown.add_column("")
    for column in ("req/s", "best", "behind", "p90 s", "best", "over", "bar"):
        shown.add_column(column, justify="right")
    for own, fastest, soonest, regret in results:
        mark = "[green]met[/]" if NEAR.holds(regret) else "[red]missed[/]"
        shown.add_row(own.cell, f"{own.requests_per_s:.2f}", f"{fastest.requests_per_s:.2f} {fastest.arm}",
                      f"{regret.loss:.1%}", f"{own.p90_s:.3f}", f"{soonest.p90_s:.3f} {soonest.arm}",
                      f"{regret.excess:+.1%}", mark)  # fmt: skip
    return shown


def verdict(fair: Sequence[Regret], judged: str) -> str:
    its = [regret for regret in fair if regret.arm == judged]
    if not its:
        return f"{judged} was not measured"
    near = sum(NEAR.holds(regret) for regret in its) / len(its)
    beyond = [regret.cell for regret in its if not WORST.holds(regret)]
    order = standings(fair)
    most = max(order, key=lambda one: one.throughput).arm
    least = min(order, key=lambda one: one.p90).arm
    sums = most == least == judged
    more = f", and {len(beyond) - NAMED} more" if len(beyond) > NAMED else ""
    return "\n".join((
        f"{judged}: {near:.1%} of {len(its)} cells within {_bar(NEAR)} (bar {SHARE:.0%}: {_met(near >= SHARE)})",
        f"{len(beyond)} beyond {_bar(WORST)} (bar 0: {_met(not beyond)}){': ' if beyond else ''}"
        f"{', '.join(beyond[:NAMED])}{more}",
        f"best sum of normalised throughput: {most}; best geometric mean of p90: {least} "
        f"(bar: {judged} in both: {_met(sums)})",
    ))  # fmt: skip


def _met(held: bool) -> str:
    return "met" if held else "missed"


def troubled_table(found: Sequence[Regret], bar: Bar, arm: str) -> Table:
    """An arm in trouble against itself without."""
    shown = Table(title=f"{arm} in trouble, against itself without (bar {_bar(bar)})", box=box.SIMPLE)
    shown.add_column("")
    for column in ("throughput lost", "p90 added", ""):
        shown.add_column(column, justify="right")
    for one in found:
        if one.arm == arm:
            mark = "[green]held[/]" if bar.holds(one) else "[red]missed[/]"
            shown.add_row(one.cell, f"{one.loss:.1%}", f"{one.excess:+.0%}", mark)
    return shown


def _bar(bar: Bar) -> str:
    return f"{bar.loss:.0%} / {bar.excess:.0%}"
