"""The grid as tables for people: what each arm loses, and where the arm that is judged stays behind most."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from tests.agreement.regret import NEAR, SHARE, WORST, Bar, Regret, Standing, standings

ROWS = 12


def show(found: Sequence[Regret], thrash: Collection[str], judged: str, console: Console) -> None:
    """`thrash`: names of the cells that are left out of the bar."""
    fair = [regret for regret in found if regret.cell not in thrash]
    if fair:
        cells = len({regret.cell for regret in fair})
        console.print(standings_table(standings(fair), f"regret over {cells} cells, thrash left out"))
        console.print(worst_table([regret for regret in fair if regret.arm == judged], judged))
        console.print(verdict(fair, judged), highlight=False)
    lost = [regret for regret in found if regret.cell in thrash]
    if lost:
        console.print(standings_table(standings(lost), "thrash: only admission helps here"))


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


def worst_table(its: Sequence[Regret], arm: str) -> Table:
    shown = Table(title=f"where {arm} stays behind most", box=box.SIMPLE)
    shown.add_column("")
    for column in ("throughput lost", "p90 over the best"):
        shown.add_column(column, justify="right")
    badness = sorted(its, key=lambda one: -max(one.loss / NEAR.loss, one.excess / NEAR.excess))
    for one in badness[:ROWS]:
        shown.add_row(one.cell, f"{one.loss:.1%}", f"{one.excess:+.1%}")
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
    return "\n".join((
        f"{judged}: {near:.1%} of {len(its)} cells within {_bar(NEAR)} (bar {SHARE:.0%}), "
        f"{len(beyond)} beyond {_bar(WORST)} (bar 0){': ' + ', '.join(beyond[:ROWS]) if beyond else ''}",
        f"best sum of normalised throughput: {most}; best geometric mean of p90: {least}",
    ))  # fmt: skip


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
