"""The oldest rule of load balancing: the target with the fewest requests of this router wins.

This rule needs nothing from the engines, so the router also falls back to it when a policy fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Measure, Needs, Scorer, Unit, View


@dataclass(frozen=True)
class LeastRequests(Scorer):
    """Our own bookings in flight at a target. Never missing: the router counts its own requests."""

    needs = Needs.LOAD
    unit = Unit.RAW

    def score(self, view: View) -> Sequence[float]:
        return [row.load.requests for row in view.rows]

    def settled_by(self) -> Measure:
        return Measure.REQUESTS
