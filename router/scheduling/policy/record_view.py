"""Records and decisions as plain JSON types, for the admin API, the command line and the decision log's readers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from router.scheduling.policy.cost_parts import CostParts, split_costs
from router.scheduling.policy.decision import Decision, Term
from router.scheduling.policy.policy import Policy
from router.scheduling.policy.rationale import describe_omitted, explain_choice
from router.scheduling.policy.record import Attempt, PrefillRecord, Record
from router.scheduling.policy.timeline import build_timeline, compare_promise, side_of

OPEN_BREAKERS = "panic: the breakers of all targets that could answer are open, so they are ignored"
SLOW_PROBES = "panic: the health probes of all engines that could answer time out, which is ignored"
ENDED = {"reasoning": "reasoning dropped", "tools": "tools moved", "template": "printed otherwise"}
LINEAGE = "session", "parent", "program"  # pseudonyms in the view of the first attempt
OMITTED = frozenset({"arrived_s", "unit", "blocks"})


def describe_record(record: Record, *, in_full: bool = True) -> dict[str, Any]:
    """Return the record as plain JSON types, with each weighted term of every candidate; the terms add up to the
    candidate's cost. `in_full` adds the parts of each term, the timeline and the promise, which take about as long
    to compute as the record's decisions.
    """
    fields: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__ if name not in OMITTED}
    fields["policy"] = None if record.policy is None else record.policy.name
    fields["policy_digest"] = None if record.policy is None else record.policy.digest
    fields["why"] = _explain_attempt(record.attempts[-1]) if record.attempts else None
    fields["shadows"] = [to_plain(shadow) for shadow in record.shadows]
    fields["target"] = record.target
    fields["prefix_end"] = None if record.prefix_end is None else _describe_prefix_end(*record.prefix_end)
    view = record.attempts[0].decision.view if record.attempts else None
    for name in LINEAGE:
        fields[name] = getattr(view, name, None)
    fields["stages"] = msgspec.structs.asdict(record.stages)
    fields["attempts"] = [_describe_attempt(attempt, record.policy if in_full else None) for attempt in record.attempts]
    if in_full:
        fields["timeline"] = [to_plain(stage) | {"side": side_of(stage.name)} for stage in build_timeline(record)]
        fields["promise"] = to_plain(compare_promise(record))
    return fields


def _describe_prefix_end(tokens: int, of_tokens: int, cause: str) -> dict[str, Any]:
    why = f"ends at token {tokens} of {of_tokens}: {ENDED[cause]}"
    return {"tokens": tokens, "of_tokens": of_tokens, "cause": cause, "why": why}


def _explain_attempt(attempt: Attempt) -> str:
    why = explain_choice(attempt.decision)
    return f"{SLOW_PROBES if attempt.down else OPEN_BREAKERS}; {why}" if attempt.panic else why


def _describe_attempt(attempt: Attempt, policy: Policy | None) -> dict[str, Any]:
    return {
        **_describe_choice(attempt, policy),
        "panic": attempt.panic,
        "down": attempt.down,
        "continued_tokens": attempt.continued_tokens,
        "continued_by": attempt.continued_by,
        "served": attempt.served,
        "pool_tokens": attempt.pool_tokens,
        "start_ms": attempt.start_ms,
        "match_ms": attempt.match_ms,
        "decide_ms": attempt.decide_ms,
        "duration_ms": attempt.duration_ms,
        "prefill": None if attempt.prefill is None else _describe_leg(attempt.prefill, policy),
    }


def _describe_leg(leg: PrefillRecord, policy: Policy | None) -> dict[str, Any]:
    return {**_describe_choice(leg, policy), "duration_ms": leg.duration_ms, "cached_tokens": leg.cached_tokens}


def _describe_choice(choice: Attempt | PrefillRecord, policy: Policy | None) -> dict[str, Any]:
    return {
        "end": choice.end,
        "predicted_tokens": choice.predicted_tokens,
        "expected_tokens": choice.expected_tokens,
        "token_id_passthrough": choice.token_id_passthrough,
        **describe_decision(choice.decision, policy),
    }


def describe_decision(decision: Decision, policy: Policy | None = None) -> dict[str, Any]:
    """Return one decision as plain JSON types: the reason in one sentence (`why`), and every candidate that the
    filters kept with its terms. Candidates without a row (`left_out`) are only counted. With the `policy` that made
    the decision, each term has its parts, or None if its scorer names no parts; `parts_missing` lists the terms
    whose parts are unknown, with the reason.
    """
    split = None if policy is None else split_costs(decision, policy)
    view: dict[str, Any] = to_plain(decision.view._replace(rows=()))
    del view["rows"]  # see `candidates`
    kept = {row.target for row in decision.rows}
    return {
        "policy": decision.policy,
        "part": decision.part,
        "target": decision.target,
        "why": explain_choice(decision),
        "margin": decision.margin,
        "left_out": describe_omitted(decision.view),
        "filtered_out": [row.target for row in decision.view.rows if row.target not in kept],
        "skipped_filters": list(decision.skipped_filters),
        "parts_missing": {} if split is None else dict(split.missing),
        "view": view,
        "candidates": [_describe_candidate(decision, split, i) for i in range(len(decision.costs))],
    }


def _describe_candidate(decision: Decision, split: CostParts | None, i: int) -> dict[str, Any]:
    terms = {term.name: _describe_term(term, split, i) for term in decision.terms}
    return {"cost": decision.costs[i], "terms": terms, **to_plain(decision.rows[i])}


def _describe_term(term: Term, split: CostParts | None, i: int) -> dict[str, Any]:
    cost = term.costs[i]
    described = {"unit": term.unit, "weight": term.weight, "cost": cost, "weighted": term.weight * cost}
    if split is not None:
        parts = split.by_term.get(term.name)
        described["parts"] = None if parts is None else {name: values[i] for name, values in parts.items()}
    return described


def weighted_parts(terms: Mapping[str, Any]) -> dict[str, float]:
    """Return the summands of a described candidate's cost: the weighted parts of each term, or the whole weighted
    term if it has no parts.
    """
    found: dict[str, float] = {}
    for name, term in terms.items():
        parts = term.get("parts")
        if parts is None:
            found[name] = term["weighted"]
            continue
        prefix = f"{name}: " if len(terms) > 1 else ""
        found |= {f"{prefix}{part}".replace("_", " "): term["weight"] * value for part, value in parts.items()}
    return found


def to_plain(value: Any) -> Any:
    """Return the contract's structs as JSON types, with their field names, and sets sorted."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        items = [to_plain(item) for item in value]
        return items if names is None else dict(zip(names, items, strict=True))
    return sorted(value) if isinstance(value, frozenset) else value
