"""A row of the benchmark: a name, what it measures, how long that takes, and the function that does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from router.errors import WarmrouteError
from tests.bench.figures import Line
from tests.bench.results import Effort


class NotMeasured(WarmrouteError):
    """The run is not the one that was to be measured: the row is left out with this reason."""


class BenchRun(NamedTuple):
    """The context of a row's measurement: `report` prints progress, `notes` are printed below the table."""

    effort: Effort
    folder: Path  # for configurations and logs
    report: Callable[[str], None]
    notes: list[str]


class Row(NamedTuple):
    """A row and the function that measures its lines. `full_s` and `quick_s`: about how long it takes."""

    name: str
    title: str
    measure: Callable[[BenchRun], list[Line]]
    full_s: float
    quick_s: float

    def takes_s(self, quick: bool) -> float:
        return self.quick_s if quick else self.full_s
