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
    compiled: bool = False  # `ours` of the lines is of the compiled build, else of the pure one

    @property
    def missed(self) -> list[Line]:
        return [line for line in self.lines if line.met is False]


def load_outcome(row: str, effort: Effort, compiled: bool, folder: Path) -> Outcome | None:
    """Return the outcome of an earlier run of the same effort and build; `None` without one or if it was left out."""
    outcome = rows.kept(folder / f"{row}.json", Outcome)
    if outcome is None or outcome.left_out is not None:
        return None
    return outcome if (outcome.effort, outcome.compiled) == (effort, compiled) else None
