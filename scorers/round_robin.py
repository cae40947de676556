"""Round robin without a counter of its own.

    cost of row i = (i - turn) mod rows

The turn counts decisions for one model and adapter. Counting all requests instead would, with two models requested
alternately, leave every other target of each without work for ever. As a function of the view it replays exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Scorer, Unit, View


@dataclass(frozen=True)
class RoundRobin(Scorer):
    """The distance of a row's position from the one whose turn it is. Reads nothing that could be missing."""

    unit = Unit.RAW
    order_matters = True

    def score(self, view: View) -> Sequence[float]:
        count = len(view.rows)
        first = view.turn % count
        return [*range(count - first, count), *range(count - first)]
