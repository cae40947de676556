"""Outcomes of the benchmark's rows, stored as one JSON file per row when it is measured.

An interrupted run keeps its outcomes, and `--resume` continues it: a row counts as measured when its file is from a run
of the same effort. Nothing here measures or prints.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.bench.figures import Line
from tests.suites import rows

FOLDER = Path(__file__).parents[2] / "build" / "bench"


class Effort(msgspec.Struct, frozen=True):
    """The amount of work to put into a run."""

    repetitions: int = 5
    quick: bool = False

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def seconds(self, full: float, quick: float) -> float:
        return quick if self.quick else full


class Outcome(msgspec.Struct, frozen=True):
    """`left_out`: why it could not be measured. `ended`: local time, in minutes. `others_cores`: see `machine.py`."""

    row: str
    title: str
    effort: Effort
    ended: str
    took_s: float
    machine: str
    others_cores: float
    lines: list[Line] = []
    notes: list[str] = []
    left_out: str | None = None

    @property
    def missed(self) -> list[Line]:
        return [line for line in self.lines if line.met is False]


def load_outcome(row: str, effort: Effort, folder: Path) -> Outcome | None:
    """Return the outcome of an earlier run of the same effort; `None` without one or if it was left out then."""
    outcome = rows.kept(folder / f"{row}.json", Outcome)
    return outcome if outcome is not None and outcome.effort == effort and outcome.left_out is None else None
