"""A bound on load for policies that would pile up one key's requests on one target.

    keep a row while   its requests < ceil(factor * (all requests + 1) / rows)

Mirrokni, Thorup & Zadimoghaddam, "Consistent Hashing with Bounded Loads" (arXiv 1608.01350, 2016): with this request
counted, nobody gets more than `factor` times the average. What overflows goes to the key's next target, so it meets its
like there too. The right side is at least the average of all, so some row always stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from scorers.contract import Filter, Needs, View


@dataclass(frozen=True)
class BoundedLoad(Filter):
    """Drops targets that have `factor` times the average of our own requests, this one counted.

    Never missing: the books are the router's. Requests of others are not in them.
    """

    needs = Needs.LOAD

    factor: float = 1.25

    def __post_init__(self) -> None:
        if self.factor < 1:
            raise ValueError(f"factor: at least 1, the average, not {self.factor}")

    def keep(self, view: View) -> Sequence[bool]:
        requests = [row.load.requests for row in view.rows]
        bound = ceil(self.factor * (sum(requests) + 1) / len(requests))
        return [count < bound for count in requests]
