"""The power of two choices: draw k rows by chance and take the cheapest of them.

The load is nearly as even as if all rows were compared, and routers that share a fleet without sharing their
bookings do not all choose the same idle target (Mitzenmacher, "The Power of Two Choices in Randomized Load
Balancing", 2001). Envoy's `least_request`, SGLang's `power_of_two` and Ray Serve's default have k = 2; the slim
sgl-router uses this choice where no cache is worth going to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

from scorers.chance import draws
from scorers.contract import Picker, View
from scorers.parameters import check_at_least


@dataclass(frozen=True)
class PowerOfK(Picker):
    """The cheapest of `k` rows drawn by chance; among equals one by chance, never by position.

    Every set of k rows is equally likely. `k: 1` is a purely random choice; with no more rows than `k` it is
    `best`.
    """

    k: int = 2

    def __post_init__(self) -> None:
        check_at_least(1, k=self.k)

    def pick(self, view: View, costs: Sequence[float]) -> int:
        lots = draws(view.seed, view.number, [row.target for row in view.rows], use="power_of_k")
        drawn = nsmallest(self.k, range(len(lots)), key=lots.__getitem__)
        return min(drawn, key=costs.__getitem__)  # among equals the first, which has the smallest draw
