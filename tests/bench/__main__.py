"""`make bench`: every figure that Warmroute claims, measured here, beside its peers and against its bar.

    python -m tests.bench [--only ROW ...] [--quick] [--resume] [--repetitions 5] [--no-pure] [--json FILE]
        [--charts FOLDER]

Rows are measured one after the other (`rows.py`); each is written to `build/bench` when it is measured, so that an
interrupted run keeps its results and `--resume` continues it. Where the router is compiled, the rows that this is meant
to make faster are measured on the pure build as well (`pure.py`). What cannot be measured here (a peer that cannot be
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

from router.errors import ExtraMissing, WarmrouteError
from scorers.build import is_compiled
from tests.bench import charts, machine, results, tables
from tests.bench.figures import Line
from tests.bench.pure import measure_pure, put_beside
from tests.bench.results import FOLDER, Effort, Outcome
from tests.bench.row import BenchRun, Row
from tests.bench.rows import BESIDE_PURE, ROWS
from tests.suites.rows import in_turn, keep, wide_console

QUICK_REPETITIONS = 1


def run(
    rows: Sequence[Row], effort: Effort, resume: bool, console: Console, folder: Path, beside_pure: bool = False
) -> list[Outcome]:
    """Measure the rows, with `beside_pure` those of `BESIDE_PURE` on the pure build as well. Ctrl-C ends the measuring,
    not the report: the outcomes so far are returned.
    """
    return in_turn(
        rows,
        lambda row: takes_s(row, effort, beside_pure),
        lambda row: results.load_outcome(row.name, effort, is_compiled(), folder) if resume else None,
        lambda row, say: measure(row, effort, say, beside_pure and row.name in BESIDE_PURE),
        folder,
        console,
    )


def takes_s(row: Row, effort: Effort, beside_pure: bool) -> float:
    """Return about how long a row takes, on both builds if it is measured on both."""
    return row.takes_s(effort.quick) * (2 if beside_pure and row.name in BESIDE_PURE else 1)


def measure(row: Row, effort: Effort, say: Callable[[str], None], beside_pure: bool = False) -> Outcome:
    others = machine.others_cores()
    began = time.monotonic()
    lines: list[Line] = []
    notes: list[str] = []
    left_out = None
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
        try:
            lines = row.measure(BenchRun(effort, Path(folder), say, notes))
            if beside_pure:
                say("the pure build")
                lines = put_beside(lines, measure_pure(row.name, effort, Path(folder)))
        except WarmrouteError as why:
            left_out = str(why)
        except OSError as trouble:  # a process has died, or has not answered in time
            left_out = f"{type(trouble).__name__}: {trouble}"
    ended = datetime.datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
    took_s = round(time.monotonic() - began, 1)
    who = machine.name()
    return Outcome(row.name, row.title, effort, ended, took_s, who, others, lines, notes, left_out, is_compiled())


def main() -> int:
    chosen = arguments()
    effort = Effort(chosen.repetitions or (QUICK_REPETITIONS if chosen.quick else 5), chosen.quick)
    rows = [row for row in ROWS if not chosen.only or row.name in chosen.only]
    if chosen.outcome:
        keep(measure(rows[0], effort, lambda _: None), chosen.outcome)
        return 0
    console = wide_console()
    beside_pure = is_compiled() and not chosen.no_pure
    minutes = sum(takes_s(row, effort, beside_pure) for row in rows) / 60
    console.print(f"{len(rows)} rows, about {minutes:.0f} minutes; each is kept in {FOLDER} when it is measured")
    outcomes = run(rows, effort, chosen.resume, console, FOLDER, beside_pure)
    if not outcomes:
        return 1
    tables.show(outcomes, console)
    keep(outcomes, chosen.json or FOLDER / "all.json")
    try:
        charts.draw(outcomes, chosen.charts)
    except ExtraMissing as why:
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
    parser.add_argument("--no-pure", action="store_true", help="do not measure the pure build beside the compiled one")
    parser.add_argument("--outcome", type=Path, help=argparse.SUPPRESS)  # of one row, to this file, and nothing else
    parser.add_argument("--json", type=Path, help=f"write every figure to this file (default: {FOLDER / 'all.json'})")
    parser.add_argument("--charts", type=Path, default=FOLDER, help="folder of the charts")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
