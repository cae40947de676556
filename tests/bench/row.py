"""What a row of the benchmark is: a name, what it measures, how long that takes, and the function that does it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from router.errors import WarmrouteError
from tests.bench.figures import Line
from tests.bench.results import Effort


class NotMeasured(WarmrouteError):
    """What ran is not what was to be measured: the row is left out with this reason."""


class Room(NamedTuple):
    """Where a row is measured. `say` tells what is going on, `notes` are printed below the table."""

    effort: Effort
    folder: Path  # for configurations and logs
    say: Callable[[str], None]
    notes: list[str]


class Row(NamedTuple):
    """One room full of work and the lines that come of it. `full_s` and `quick_s`: about how long it takes."""

    name: str
    title: str
    measure: Callable[[Room], list[Line]]
    full_s: float
    quick_s: float

    def takes_s(self, quick: bool) -> float:
        return self.quick_s if quick else self.full_s
