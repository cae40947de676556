"""The picker that takes the cheapest row.

Ties are common (an idle fleet, a cold prompt). The row with the most free cache memory wins a tie: a prompt that
costs the same everywhere goes where it evicts least. Rows that are equal in free memory too are chosen by chance:
always taking the first row would pile every cold prompt onto one target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.chance import draws
from scorers.contract import Picker, View
from scorers.row_loops import roomiest


@dataclass(frozen=True)
class Best(Picker):
    """The row with the least cost; among equals one with the most free cache memory, and among equals in that one
    by chance, never by position.

    Missing: where the capacity of one of them is unknown, or what it holds, memory does not count.
    """

    takes_least = True

    def pick(self, view: View, costs: Sequence[float]) -> int:
        least = min(costs)
        if costs.count(least) == 1:
            return costs.index(least)
        tied = roomiest(view.rows, costs, least)
        (lot,) = draws(view.seed, view.number, ["tied"], use="best")  # one draw: one each takes 25 us for 64 rows
        return tied[int(lot * len(tied))]
