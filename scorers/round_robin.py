"""Round robin without a counter of its own.

    cost of row i = (i - turn) mod rows

The turn counts decisions for one model and adapter. If all requests were counted instead, two models requested
alternately would each leave every other target without work for ever. The cost is a function of the view, so it
replays exactly.
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
