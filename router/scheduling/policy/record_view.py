"""Records and decisions as plain JSON types, for the admin API, the command line and the decision log's readers."""

from __future__ import annotations

from typing import Any

import msgspec

from router.scheduling.policy.decision import Decision
from router.scheduling.policy.rationale import describe_omitted, explain_choice
from router.scheduling.policy.record import Attempt, PrefillRecord, Record

PANIC = "panic: the breakers of all targets that could answer are open, so they are ignored"
LINEAGE = "session", "parent", "program"  # pseudonyms, of the first attempt's view
OMITTED = frozenset({"arrived_s", "unit", "blocks"})


def describe_record(record: Record) -> dict[str, Any]:
    """Return the record as plain JSON types: every candidate with each weighted term; the terms add up to its cost."""
    fields: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__ if name not in OMITTED}
    fields["policy"] = None if record.policy is None else record.policy.name
    fields["policy_digest"] = None if record.policy is None else record.policy.digest
    fields["why"] = _explain_attempt(record.attempts[-1]) if record.attempts else None
    fields["shadows"] = [to_plain(shadow) for shadow in record.shadows]
    fields["target"] = record.target
    view = record.attempts[0].decision.view if record.attempts else None
    for name in LINEAGE:
        fields[name] = getattr(view, name, None)
    fields["stages"] = msgspec.structs.asdict(record.stages)
    fields["attempts"] = [_describe_attempt(attempt) for attempt in record.attempts]
    return fields


def _explain_attempt(attempt: Attempt) -> str:
    return f"{PANIC}; {explain_choice(attempt.decision)}" if attempt.panic else explain_choice(attempt.decision)


def _describe_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        **_describe_choice(attempt),
        "panic": attempt.panic,
        "served": attempt.served,
        "pool_tokens": attempt.pool_tokens,
        "start_ms": attempt.start_ms,
        "match_ms": attempt.match_ms,
        "decide_ms": attempt.decide_ms,
        "duration_ms": attempt.duration_ms,
        "prefill": None if attempt.prefill is None else _describe_leg(attempt.prefill),
    }


def _describe_leg(leg: PrefillRecord) -> dict[str, Any]:
    return {**_describe_choice(leg), "duration_ms": leg.duration_ms, "cached_tokens": leg.cached_tokens}


def _describe_choice(choice: Attempt | PrefillRecord) -> dict[str, Any]:
    return {
        "end": choice.end,
        "predicted_tokens": choice.predicted_tokens,
        "expected_tokens": choice.expected_tokens,
        "token_id_passthrough": choice.token_id_passthrough,
        **describe_decision(choice.decision),
    }


def describe_decision(decision: Decision) -> dict[str, Any]:
    """Return one choice as plain JSON types: `why` in a sentence, and every candidate that the filters kept with its
    terms. Candidates without a row (`left_out`) are only counted.
    """
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
        "view": view,
        "candidates": [_describe_candidate(decision, i) for i in range(len(decision.costs))],
    }


def _describe_candidate(decision: Decision, i: int) -> dict[str, Any]:
    terms = {
        term.name: {
            "unit": term.unit,
            "weight": term.weight,
            "cost": term.costs[i],
            "weighted": term.weight * term.costs[i],
        }
        for term in decision.terms
    }
    return {"cost": decision.costs[i], "terms": terms, **to_plain(decision.rows[i])}


def to_plain(value: Any) -> Any:
    """Return the contract's structs as JSON types: field names kept, sets sorted."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        items = [to_plain(item) for item in value]
        return items if names is None else dict(zip(names, items, strict=True))
    return sorted(value) if isinstance(value, frozenset) else value
