"""The reason for a decision in one sentence, read from the decision without deciding again.

engine-2/0: prefix_overlap costs 1.20 points less than at engine-0/0 (the runner-up, dearer by 0.85 points in all)

The runner-up is the cheapest of the other rows. The named term is the one that favours the chosen row most against
the runner-up; such a term always exists, since a sum is smaller only if some summand is smaller. If costs do not
explain the choice (one candidate, equals, a picker that does not take the cheapest), the sentence gives that reason
instead.
"""

from __future__ import annotations

from router.scheduling.policy.decision import FALLBACK, Decision, Term
from scorers.contract import View

_FAILED = "the policy failed and the fallback chose: "


def explain_choice(decision: Decision) -> str:
    """Return one sentence without a full stop. Amounts are weighted, in the policy's unit."""
    failed = _FAILED if decision.policy == FALLBACK else ""
    return f"{failed}{decision.target}: {_reason(decision)}{_among_whom(decision.view)}"


def describe_omitted(view: View) -> str | None:
    """Return how many candidates have no row and why, without a full stop; None if every candidate has a row. Only
    policies that decide by the same measures as the active one choose the same from these rows.
    """
    if not view.others:
        return None
    return (
        f"not priced: {view.others:,} of {len(view.rows) + view.others:,} candidates; each holds the same of the "
        "prompt as one of these and has no less work ahead, so none could do better by a policy in use, though one of "
        "them may be the runner-up"
    )


def _reason(decision: Decision) -> str:
    rows, costs, chosen = decision.rows, decision.costs, decision.chosen
    if len(rows) == 1:
        offered = len(decision.view.rows)
        if offered > 1:
            return f"the only one of {offered} candidates that the filters left"
        return "the only one that could win" if decision.view.others else "the only candidate"
    least, cost = min(costs), costs[chosen]
    unit = _unit(decision.terms)
    if cost > least:
        cheapest = rows[costs.index(least)].target
        return f"drawn by the picker, although {cheapest} costs {format_amount(cost - least)}{unit} less"
    if (equals := costs.count(least)) > 1:
        return f"by chance among {equals} equals"
    return _difference(decision, unit)


def _among_whom(view: View) -> str:
    """Return how many candidates have a row, if not all do: the others may be equals, or a closer runner-up."""
    return f" (priced: {len(view.rows):,} of {len(view.rows) + view.others:,} candidates)" if view.others else ""


def _difference(decision: Decision, unit: str) -> str:
    """Return the reason for a row that is cheaper than all others."""
    costs, chosen = decision.costs, decision.chosen
    other = min((i for i in range(len(costs)) if i != chosen), key=costs.__getitem__)
    gains = {term.name: term.weight * term.costs[other] - term.weight * term.costs[chosen] for term in decision.terms}
    name = max(gains, key=gains.__getitem__)
    text = f"{name} costs {format_amount(gains[name])}{unit} less than at {decision.rows[other].target}"
    if len(decision.terms) == 1:
        return f"{text}, the runner-up"
    return f"{text} (the runner-up, dearer by {format_amount(costs[other] - costs[chosen])}{unit} in all)"


def _unit(terms: tuple[Term, ...]) -> str:
    """Return the unit as a suffix, empty for a raw cost."""
    return "" if terms[0].unit == "raw" else f" {terms[0].unit}"


def format_amount(value: float) -> str:
    """Return the value with the digits that people need to compare: 1,234, 1.20, 0.0042."""
    size = abs(value)
    if size >= 99.995:
        return f"{value:,.0f}"
    return f"{value:.2f}" if size >= 0.00995 or not size else f"{value:.2g}"
