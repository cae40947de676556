"""`make bench`: every figure that Warmroute claims, measured here, beside its peers and against its bar.

    python -m tests.bench [--only ROW ...] [--quick] [--resume] [--repetitions 5] [--json FILE] [--charts FOLDER]

Rows are measured one after the other (`rows.py`); each is written to `build/bench` when it is measured, so that an
interrupted run keeps its results and `--resume` continues it. What cannot be measured here (a peer that cannot be
installed) is left out, with a line that says why. All load is on loopback, bounded, and ends by itself.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console

from router.cli.terminal.drawing import ChartsUnavailable
from router.errors import WarmrouteError
from tests.bench import charts, machine, results, tables
from tests.bench.figures import Line
from tests.bench.results import FOLDER, Effort, Outcome
from tests.bench.row import BenchRun, Row
from tests.bench.rows import ROWS
from tests.suites.rows import in_turn, keep

QUICK_REPETITIONS = 1


def run(rows: Sequence[Row], effort: Effort, resume: bool, console: Console, folder: Path) -> list[Outcome]:
    """Measure the rows. Ctrl-C ends the measuring, not the report: the outcomes so far are returned."""
    return in_turn(
        rows,
        lambda row: row.takes_s(effort.quick),
        lambda row: results.load_outcome(row.name, effort, folder) if resume else None,
        lambda row, say: measure(row, effort, say),
        folder,
        console,
    )


def measure(row: Row, effort: Effort, say: Callable[[str], None]) -> Outcome:
    others = machine.others_cores()
    began = time.monotonic()
    lines: list[Line] = []
    notes: list[str] = []
    left_out = None
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
        try:
            lines = row.measure(BenchRun(effort, Path(folder), say, notes))
        except WarmrouteError as why:
            left_out = str(why)
        except OSError as trouble:  # a process has died, or has not answered in time
            left_out = f"{type(trouble).__name__}: {trouble}"
    ended = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
    took_s = round(time.monotonic() - began, 1)
    return Outcome(row.name, row.title, effort, ended, took_s, machine.name(), others, lines, notes, left_out)


def main() -> int:
    chosen = arguments()
    effort = Effort(chosen.repetitions or (QUICK_REPETITIONS if chosen.quick else 5), chosen.quick)
    rows = [row for row in ROWS if not chosen.only or row.name in chosen.only]
    console = Console() if Console().is_terminal else Console(width=140)
    minutes = sum(row.takes_s(effort.quick) for row in rows) / 60
    console.print(f"{len(rows)} rows, about {minutes:.0f} minutes; each is kept in {FOLDER} when it is measured")
    outcomes = run(rows, effort, chosen.resume, console, FOLDER)
    if not outcomes:
        return 1
    tables.show(outcomes, console)
    keep(outcomes, chosen.json or FOLDER / "all.json")
    try:
        charts.draw(outcomes, chosen.charts)
    except ChartsUnavailable as why:
        console.print(str(why))
    return 0 if len(outcomes) == len(rows) else 130


def arguments() -> argparse.Namespace:
    names = [row.name for row in ROWS]
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", action="append", choices=names, metavar="ROW", help=f"one of {', '.join(names)}; may be repeated"
    )
    parser.add_argument(
        "--quick", action="store_true", help="a few minutes: to see that it runs; its figures are not for keeps"
    )
    parser.add_argument(
        "--resume", action="store_true", help="measure only what an earlier run of the same effort has not"
    )
    parser.add_argument("--repetitions", type=int, help="of each measurement: 5, with --quick 1")
    parser.add_argument("--json", type=Path, help=f"write every figure to this file (default: {FOLDER / 'all.json'})")
    parser.add_argument("--charts", type=Path, default=FOLDER, help="folder of the charts")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
