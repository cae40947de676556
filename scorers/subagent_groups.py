"""Group affinity of sub-agents: those of one parent share a target, so that they share its prompt's beginning.

    bound    the target of the parent's group, if the request has a parent; else that of its own session
    stay     if  requests at the bound target <= max_active_requests, or no target has fewer
    else     fewest requests; the group is bound to where its request went, for `group_idle_ttl_s` after the last one

A parent usually works on while its sub-agents do, so a new group goes where the fewest requests are, not where the
parent is. A group moves only to a target with fewer requests: if it also moved to one with as many, it would move
at every request of a full fleet and lose what it shares.

Source: ai-dynamo/dynamo, lib/router-plugins/builtin/src/subagent_group_affinity.rs, with its defaults and bounds
(65,536 groups; a request with a single candidate rebinds none). Differences: an idle group ends exactly after its
time instead of at the next sweep; one of equally loaded targets is taken at random instead of by the lowest id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from scorers.contract import Needs, Row, Scorer, Unit, View
from scorers.memory import MAX_SESSIONS, remember
from scorers.parameters import check_above_0, check_at_least


class GroupBinding(NamedTuple):
    """Target and time of a group's last request."""

    target: str
    at_s: float


@dataclass
class SubagentGroups(Scorer):
    """-1 for the bound target while it keeps the request; for all others, and else, our own requests there.

    Missing: a request without a parent belongs to its own session only; without a session, at its first request, or
    when the bound target is no candidate, the fewest requests decide. Requests are never missing.
    """

    needs = Needs.SESSION | Needs.LOAD
    unit = Unit.RAW

    max_active_requests: int = 32
    group_idle_ttl_s: float = 300.0

    _groups: dict[tuple[str, str], GroupBinding] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        check_at_least(0, max_active_requests=self.max_active_requests)
        check_above_0(group_idle_ttl_s=self.group_idle_ttl_s)

    def score(self, view: View) -> Sequence[float]:
        requests = [row.load.requests for row in view.rows]
        target = self._bound_target(view)
        bound = next((i for i, row in enumerate(view.rows) if row.target == target), None)
        if bound is None or self.max_active_requests < requests[bound] > min(requests):
            return requests
        return [-1 if i == bound else count for i, count in enumerate(requests)]

    def picked(self, view: View, row: Row) -> None:
        if view.parent is None:
            return
        group = view.model, view.parent
        bound = self._groups.get(group)
        if len(view.rows) > 1:
            remember(self._groups, group, GroupBinding(row.target, view.now_s), MAX_SESSIONS)
        elif bound is not None:
            remember(self._groups, group, bound._replace(at_s=view.now_s), MAX_SESSIONS)

    def _bound_target(self, view: View) -> str | None:
        """Return the target to which the request's group is bound, or its session if it has no parent. None if
        unbound.
        """
        if view.parent is None:
            return view.last_target
        bound = self._groups.get((view.model, view.parent))
        return None if bound is None or view.now_s - bound.at_s >= self.group_idle_ttl_s else bound.target
