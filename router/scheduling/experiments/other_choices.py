"""Choices that other policies would have made for a request, given the view in its record.

Each policy decides once, in its present state, with everything that it has learned since. Nothing is booked,
counted or learned. A policy that keeps sessions together sees the session's real target, not the one that the
policy itself would have chosen.
"""

from __future__ import annotations

from typing import NamedTuple

from router.scheduling.experiments.dry_run import lacks_cache_facts
from router.scheduling.experiments.regret import compute_regret
from router.scheduling.policy.decision import Decision, Regret
from router.scheduling.policy.policy import Policy, PolicyFault
from router.scheduling.policy.rationale import explain_choice

LEARNS = "it learns: it decided by what it knows now"
BLIND = "it reads caches, and the record has no facts on them, because no policy then in use did"
PARTIAL = "it might have taken a candidate of a large fleet that the record leaves out"


class OtherChoice(NamedTuple):
    """The choice of one policy. Costs are computed by this policy, in its unit. `actual_cost` is the cost of the
    target that was really chosen, None if this policy's filters drop that target. If the policy failed, all but
    `fault` is None.
    """

    policy: str
    digest: str
    target: str | None = None
    why: str | None = None
    unit: str | None = None
    cost: float | None = None
    actual_cost: float | None = None
    difference: Regret | None = None  # by the same yardstick for all policies
    notes: tuple[str, ...] = ()  # why the policy might really have made another choice
    fault: str | None = None


def decide_with(policy: Policy, actual: Decision, shown_for: Policy | None) -> OtherChoice:
    """Return the choice of `policy` instead of `actual`. `shown_for` is the policy for which the view is complete;
    None if that policy is unknown.
    """
    view = actual.view
    try:
        own = policy.decide(view, actual.part)
    except PolicyFault as fault:
        return OtherChoice(policy.name, policy.digest, fault=str(fault))
    there = next((cost for row, cost in zip(own.rows, own.costs, strict=True) if row.target == actual.target), None)
    notes = (
        LEARNS if own.learners else None,
        BLIND if lacks_cache_facts(policy, view) else None,
        PARTIAL if policy.might_choose_omitted(view, shown_for) else None,
    )
    return OtherChoice(
        policy.name,
        policy.digest,
        target=own.target,
        why=explain_choice(own),
        unit=own.terms[0].unit,
        cost=own.costs[own.chosen],
        actual_cost=there,
        difference=compute_regret(view, actual.row, own.row),
        notes=tuple(note for note in notes if note is not None),
    )
