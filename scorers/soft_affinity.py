"""Session affinity with a load guard: a session stays until its target is busy and another is clearly less so.

    stay     if  requests at the session's target <= max_active_requests
             or  no target has at least `move_margin` requests fewer
    else     fewest requests

Source: ai-dynamo/dynamo, lib/router-plugins/builtin/src/soft_affinity_load_guard.rs, with its defaults, which
Dynamo chose by practice. The threshold counts all requests of a target and has to be above its usual concurrency,
or sessions move all the time; the margin prevents a move back and forth over a single request. A session that moved
stays at its new target.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Needs, Scorer, Unit, View
from scorers.parameters import check_at_least


@dataclass(frozen=True)
class SoftAffinity(Scorer):
    """-1 for the session's last target while it keeps the session; for all others, and else, our own requests
    there.

    Missing: without a session, at its first request, or when its target is no candidate, the fewest requests
    decide. Requests are never missing.
    """

    needs = Needs.SESSION | Needs.LOAD
    unit = Unit.RAW

    max_active_requests: int = 32
    move_margin: int = 2

    def __post_init__(self) -> None:
        check_at_least(0, max_active_requests=self.max_active_requests)
        check_at_least(1, move_margin=self.move_margin)

    def score(self, view: View) -> Sequence[float]:
        requests = [row.load.requests for row in view.rows]
        bound = next((i for i, row in enumerate(view.rows) if row.target == view.last_target), None)
        if bound is None or self._moves(requests[bound], min(requests)):
            return requests
        return [-1 if i == bound else count for i, count in enumerate(requests)]

    def _moves(self, bound: int, least: int) -> bool:
        return bound > self.max_active_requests and bound - least >= self.move_margin
