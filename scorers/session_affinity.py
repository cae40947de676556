"""Session affinity: the target of the session's last request, whose cache holds the earlier turns.

cost = 0 where this session's last request went, else 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Needs, Scorer, Unit, View


@dataclass(frozen=True)
class SessionAffinity(Scorer):
    """0 for the target of the session's last request, 1 for all others.

    Missing: without a session, at its first request, or when that target is no candidate, every row costs 1.
    """

    needs = Needs.SESSION
    unit = Unit.POINTS

    def score(self, view: View) -> Sequence[float]:
        return [0.0 if row.target == view.last_target else 1.0 for row in view.rows]
