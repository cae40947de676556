"""A filter that bounds the load of one target, for policies that would send all requests with one key to it.

    keep a row while   its requests < ceil(factor * (all requests + 1) / rows)

Mirrokni, Thorup & Zadimoghaddam, "Consistent Hashing with Bounded Loads" (arXiv 1608.01350, 2016): with this
request counted, no target gets more than `factor` times the average. Requests beyond the bound go to the key's next
target, so requests with the same key meet there too. The right side is at least the average of all rows, so some
row always stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from scorers.contract import Filter, Needs, View
from scorers.parameters import check_at_least


@dataclass(frozen=True)
class BoundedLoad(Filter):
    """Drops targets that have `factor` times the average of our own requests, this one counted.

    Never missing: the router counts its own requests. Those of other clients do not count.
    """

    needs = Needs.LOAD

    factor: float = 1.25

    def __post_init__(self) -> None:
        check_at_least(1, factor=self.factor)

    def keep(self, view: View) -> Sequence[bool]:
        requests = [row.load.requests for row in view.rows]
        bound = ceil(self.factor * (sum(requests) + 1) / len(requests))
        return [count < bound for count in requests]
