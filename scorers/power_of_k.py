"""The power of two choices: look at k rows by chance and take the cheaper.

Nearly as even as looking at all of them, and routers that share a fleet without sharing their books do not all run to
the same idle target (Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", 2001). Envoy's
`least_request`, SGLang's `power_of_two` and Ray Serve's default have k = 2; the slim sgl-router does it where no cache
is worth going to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nsmallest

from scorers.chance import draws
from scorers.contract import Picker, View


@dataclass(frozen=True)
class PowerOfK(Picker):
    """The cheapest of `k` rows drawn by chance; among equals one by chance, never by position.

    Every set of k rows is equally likely. `k: 1` is blind chance; with as few rows as `k` it is `best`.
    """

    k: int = 2

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ValueError(f"k: at least 1, not {self.k}")

    def pick(self, view: View, costs: Sequence[float]) -> int:
        lots = draws(view.seed, view.number, [row.target for row in view.rows], use="power_of_k")
        drawn = nsmallest(self.k, range(len(lots)), key=lots.__getitem__)
        return min(drawn, key=costs.__getitem__)  # the first of equals: the one with the smaller lot
