"""`make bench-sim`: the simulator held against what others measured, and the default policy against all others.

    python -m tests.agreement rows [--only ROW ...] [--reduced] [--resume] [--json FILE]
    python -m tests.agreement admission [--cells REGEX] [--seeds 3] [--reduced]
    python -m tests.agreement grid [--arms warm,my.yaml] [--cells REGEX] [--seeds 3] [--jobs 2] [--reduced]

Everything is kept in `build/agreement` as soon as it is there; an interrupted run goes on with the same command. Arms
are policies by name, or files; `all` is configs/policies.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from router.errors import ExtraMissing, WarmrouteError
from router.lab.sweep import options
from tests.agreement import admission_rules, kept, measured, regret, regret_chart, regret_tables, rows_table
from tests.agreement.cells import Cell, all_cells, reduced_cells
from tests.agreement.grid import Grid, first_pass, tasks
from tests.agreement.ground import FULL, REDUCED
from tests.agreement.measured import Measured
from tests.agreement.rows import ROWS
from tests.suites.rows import keep, wide_console

DEFAULT = "warm"


def main() -> int:
    chosen = arguments()
    console = wide_console()
    try:
        return int(chosen.run(chosen, console))
    except WarmrouteError as why:
        console.print(str(why), highlight=False)
        return 2


def run_rows(chosen: argparse.Namespace, console: Console) -> int:
    rows = [row for row in ROWS if not chosen.only or row.name in chosen.only]
    found = rows_table.run(rows, chosen.reduced, chosen.resume, console, kept.FOLDER)
    if not found:
        return 1
    rows_table.show(found, console)
    if chosen.json:
        keep(found, chosen.json)
    return 0 if len(found) == len(rows) else 130


def run_admission(chosen: argparse.Namespace, console: Console) -> int:
    pattern = re.compile(chosen.cells)
    cells = [cell for cell in admission_rules.CELLS if pattern.search(cell.name)]
    window = admission_rules.REDUCED if chosen.reduced else admission_rules.FULL
    seeds = range(chosen.first_seed, chosen.first_seed + chosen.seeds)
    found = admission_rules.run(cells, seeds, window, console, accept_old=chosen.accept_old)
    admission_rules.show(cells, found, console)
    return 0


def run_grid(chosen: argparse.Namespace, console: Console) -> int:
    effort = REDUCED if chosen.reduced else FULL
    pattern = re.compile(chosen.cells)
    cells = [cell for cell in (reduced_cells() if chosen.reduced else all_cells()) if pattern.search(cell.name)]
    if not cells:
        raise WarmrouteError(f"--cells {chosen.cells}: no such cell; one is named {all_cells()[0].name}")
    arms = options.load_policies(chosen.arms.split(","))
    seeds = range(chosen.first_seed, chosen.first_seed + (chosen.seeds or (1 if chosen.reduced else 3)))
    if chosen.fresh:
        chosen.results.unlink(missing_ok=True)
    grid = Grid(chosen.results, console, chosen.jobs, accept_old=chosen.accept_old)
    if chosen.reduced and chosen.arms == options.ALL:
        arms = first_pass(grid, arms, seeds[0], effort)
        console.print(f"arms that stay: {', '.join(arms)}", highlight=False)
    found = grid.run(tasks(cells, arms, seeds, effort), "grid")
    tell(found, cells, chosen.judge, console, chosen.charts)
    return 0 if len(found) == len(cells) * len(arms) * len(seeds) else 1


def tell(found: Sequence[Measured], cells: Sequence[Cell], judged: str, console: Console, charts: Path) -> None:
    scores = regret.means(score for one in found if (score := one.score))
    if not scores:
        return
    thrash = {cell.name for cell in cells if cell.thrash}
    regret_tables.show(scores, thrash, judged, console)
    pairs = {cell.name: cell.clean.name for cell in cells if cell.trouble}
    if lost := regret.lost_to_trouble({(one.cell, one.arm): one for one in scores}, pairs):
        console.print(regret_tables.troubled_table(lost, regret.TROUBLED, judged))
    try:
        regret_chart.draw(regret.regrets(scores), [cell for cell in cells if not cell.thrash], charts / "regret.png")
    except ExtraMissing as why:
        console.print(str(why))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.agreement", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True)
    names = [row.name for row in ROWS]
    rows = commands.add_parser("rows", help="what others measured")
    rows.set_defaults(run=run_rows)
    rows.add_argument("--only", action="append", choices=names, help="may be repeated")
    rows.add_argument("--reduced", action="store_true", help="the beginning of traces, shorter windows")
    rows.add_argument("--resume", action="store_true", help="only what the same code has not measured yet")
    rows.add_argument("--json", type=Path, help="write every figure to this file")
    rules = commands.add_parser("admission", help="the admission rules against each other")
    rules.set_defaults(run=run_admission)
    rules.add_argument("--cells", default="", help="only cells whose name has this regular expression in it")
    rules.add_argument("--seeds", type=int, default=3, help="so many")
    rules.add_argument("--first-seed", type=int, default=1)
    rules.add_argument("--reduced", action="store_true", help="shorter windows")
    rules.add_argument("--accept-old", action="store_true", help="results that other code has measured count too")
    grid = commands.add_parser("grid", help="the default policy's grid")
    grid.set_defaults(run=run_grid)
    grid.add_argument("--arms", default=options.ALL, help="policies by name or file, with commas between; all")
    grid.add_argument("--cells", default="", help="only cells whose name has this regular expression in it")
    grid.add_argument("--seeds", type=int, help="so many; 3, or 1 with --reduced")
    grid.add_argument("--first-seed", type=int, default=1)
    grid.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    grid.add_argument("--judge", default=DEFAULT, help="the arm that is held against the bar")
    grid.add_argument("--reduced", action="store_true", help="shorter windows, fewer cells and arms")
    grid.add_argument("--fresh", action="store_true", help="forget what was measured before")
    grid.add_argument("--accept-old", action="store_true", help="results that other code has measured count too")
    grid.add_argument("--results", type=Path, default=measured.FILE)
    grid.add_argument("--charts", type=Path, default=measured.FILE.parent, help="folder of the chart")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
