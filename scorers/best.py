"""The picker that takes the cheapest row.

Ties are common (an idle fleet, a cold prompt). The row with the most free cache memory wins a tie: a prompt that
costs the same everywhere goes where it evicts least. Rows that are equal in free memory too are chosen by chance:
always taking the first row would pile every cold prompt onto one target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.chance import draws
from scorers.contract import Picker, Row, View


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
        tied = _find_roomiest(view.rows, [i for i, cost in enumerate(costs) if cost == least])
        tied.sort(key=lambda i: view.rows[i].target)
        (lot,) = draws(view.seed, view.number, ["tied"], use="best")  # one draw: one each takes 25 us for 64 rows
        return tied[int(lot * len(tied))]


def _find_roomiest(rows: Sequence[Row], tied: list[int]) -> list[int]:
    """Return the rows of `tied` with the most free cache memory, or all of them if that is unknown for any."""
    free: list[int] = []
    for i in tied:
        _, _, _, block_tokens, capacity_tokens, _, _, _, held_tokens = rows[i]
        if block_tokens is None or capacity_tokens is None or held_tokens is None:
            return tied
        free.append(max(0, capacity_tokens - held_tokens) // block_tokens)
    most = max(free)
    return [i for i, blocks in zip(tied, free, strict=True) if blocks == most]
