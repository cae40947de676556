"""What each row of the benchmark came to, kept as one JSON file per row from the moment it is measured.

An interrupted run keeps what it has, and `--resume` goes on: a row counts as measured when its file is from a run of
the same effort. Nothing here measures or prints.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from tests.bench.figures import Line

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


def keep(outcome: Outcome, folder: Path) -> Path:
    """Writes it, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{outcome.row}.json"
    unfinished = file.with_suffix(".unfinished")
    unfinished.write_bytes(msgspec.json.format(msgspec.json.encode(outcome), indent=1) + b"\n")
    unfinished.replace(file)
    return file


def kept(row: str, effort: Effort, folder: Path) -> Outcome | None:
    """What an earlier run of the same effort measured; None: nothing, or it was left out then."""
    try:
        outcome = msgspec.json.decode((folder / f"{row}.json").read_bytes(), type=Outcome)
    except (FileNotFoundError, msgspec.DecodeError):  # a file of another version of this says nothing
        return None
    return outcome if outcome.effort == effort and outcome.left_out is None else None
