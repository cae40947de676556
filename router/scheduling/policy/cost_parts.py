"""The named parts of a decision's costs (`Scorer.parts`), computed from the decision's view when it is read.

Nothing in this module runs while a request is served, and no parts are stored: a decision has its view, and a
record has the policy that made the decision. A scorer that has learned since may price the same view differently.
So parts are shown only if they add up to the costs of the decision; otherwise a reason is shown instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import fsum, isclose
from typing import NamedTuple

from router.scheduling.policy.decision import Decision
from router.scheduling.policy.policy import Policy
from scorers.contract import Scorer, View

TOLERANCE = 1e-6
"""Largest difference between a cost and the sum of its parts, relative to the larger of cost and parts."""

NO_SUM = "its parts do not add up to its cost, which it may have computed before it learned more"

Parts = Mapping[str, Sequence[float]]


class CostParts(NamedTuple):
    """The parts of a decision's terms: by term, by name, one value per row, unweighted like the term's costs."""

    by_term: Mapping[str, Parts]  # without terms whose scorers name no parts
    missing: Mapping[str, str]  # by term: why its parts are unknown, although its scorer names parts


NO_PARTS = CostParts({}, {})


def split_costs(decision: Decision, policy: Policy | None) -> CostParts:
    """Return the parts of every term: no parts without the policy that made the decision, or if the fallback made
    it.
    """
    decider = None if policy is None else policy.profile(decision.part)
    if decider is None or decider.name != decision.policy:
        return NO_PARTS
    by_term, missing = dict[str, Parts](), dict[str, str]()
    for term, scorer in zip(decision.terms, decider.scorers, strict=True):
        try:
            parts = _split(scorer.scorer, decision.seen, term.costs)
        except Exception as failure:  # noqa: BLE001  a plug-in may raise anything; the reader is told
            missing[term.name] = f"{type(failure).__name__}: {failure}"
        else:
            if parts:
                by_term[term.name] = parts
    return CostParts(by_term, missing)


def _split(scorer: Scorer, view: View, costs: Sequence[float]) -> Parts | None:
    """Return the parts of `costs`; None if the scorer names no parts. Raises ValueError if they do not add up."""
    parts = scorer.parts(view)
    if parts is None:
        return None
    for cost, *shares in zip(costs, *parts.values(), strict=True):
        size = max(abs(cost), fsum(map(abs, shares)))
        if not isclose(fsum(shares), cost, rel_tol=0, abs_tol=TOLERANCE * size + TOLERANCE):
            raise ValueError(NO_SUM)
    return parts
