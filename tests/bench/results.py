"""What each row of the benchmark came to, kept as one JSON file per row from the moment it is measured.

An interrupted run keeps what it has, and `--resume` goes on: a row counts as measured when its file is from a run of
the same effort. Nothing here measures or prints.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.bench.figures import Line
from tests.suites import rows

FOLDER = Path(__file__).parents[2] / "build" / "bench"


class Effort(msgspec.Struct, frozen=True):
    """How much work to put into it."""

    repetitions: int = 5
    quick: bool = False

    def of(self, full: int, quick: int) -> int:
        return quick if self.quick else full

    def seconds(self, full: float, quick: float) -> float:
        return quick if self.quick else full


class Outcome(msgspec.Struct, frozen=True):
    """`left_out`: why it could not be measured. `ended`: local time, to the minute. `others_cores`: `machine.py`."""

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


def kept(row: str, effort: Effort, folder: Path) -> Outcome | None:
    """What an earlier run of the same effort measured; None: nothing, or it was left out then."""
    outcome = rows.kept(folder / f"{row}.json", Outcome)
    return outcome if outcome is not None and outcome.effort == effort and outcome.left_out is None else None
