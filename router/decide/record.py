"""Everything about one decision and its outcome. Written once by the line, read by people, metrics and replays.

A record keeps references (the view, the decision), not copies: the readable form is made only when somebody asks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from scorers.contract import Scorer, View


class Term(NamedTuple):
    """One scorer's part of every row's cost."""

    name: str
    unit: str
    weight: float
    costs: tuple[float, ...]  # unweighted, one per row of the decision's view


class Decision(NamedTuple):
    """What a policy made of a view. `view.rows` are the rows that passed the filters, `costs` theirs."""

    policy: str
    view: View
    terms: tuple[Term, ...]
    costs: tuple[float, ...]
    chosen: int
    skipped_filters: tuple[str, ...]  # filters that would have left no row
    learners: tuple[Scorer, ...] = ()  # scorers of the policy that want to hear of this choice and its outcome

    @property
    def target(self) -> str:
        return self.view.rows[self.chosen].target


class Leg(msgspec.Struct, gc=False):
    """The prefill half of a pair: another instance computes the prompt and hands its KV over."""

    decision: Decision
    predicted_tokens: int | None  # as in `Attempt`, of the prefill target
    expected_tokens: int | None
    end: str = "running"  # ok | rejected | connect | busy | died | failed | deadline | cancelled | client_gone
    duration_ms: float | None = None
    cached_tokens: int | None = None  # delivered there

    @property
    def target(self) -> str:
        return self.decision.target


class Attempt(msgspec.Struct, gc=False):
    """One choice and how it went."""

    decision: Decision
    predicted_tokens: int | None  # overlap that the index promised for the chosen target, in any tier of its own
    expected_tokens: int | None  # the same, counting what was just sent there
    pool_tokens: int | None = None  # what the shared pool was seen to hold beyond that; None: unknown, or not asked
    end: str = "running"  # ok | connect | busy | died | broken | client_gone | deadline | rejected | prefill
    prefill: Leg | None = None  # where the prompt's KV came from, when not from the target's own work


class Stages(msgspec.Struct, gc=False):
    """Milliseconds that the router itself added, by stage; None where the stage did not run."""

    parse_ms: float | None = None
    tokens_ms: float | None = None
    keys_ms: float | None = None
    pool_ms: float | None = None
    match_ms: float | None = None
    decide_ms: float | None = None
    connect_ms: float | None = None


class Record(msgspec.Struct, gc=False):
    """One request, from the choice to the end."""

    id: str
    number: int
    arrived_s: float  # monotonic
    at_wall_s: float
    endpoint: str
    model: str
    stream: bool
    tokens_from: str  # given | local | remote | or why they are unknown
    prompt_tokens_counted: int | None  # by us, before sending
    stages: Stages
    attempts: list[Attempt] = []
    status: int | None = None  # what the client got
    error: str | None = None
    ttft_ms: float | None = None
    duration_ms: float | None = None
    prompt_tokens: int | None = None  # by the engine
    cached_tokens: int | None = None  # delivered
    output_tokens: int | None = None
    poison: bool = False  # two engines died on it
    done: bool = False

    @property
    def target(self) -> str | None:
        return self.attempts[-1].decision.target if self.attempts else None


def readable(record: Record) -> dict[str, Any]:
    """The record for people, as plain JSON types: every candidate with each weighted term, which add up to its cost."""
    shown: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__ if name != "arrived_s"}
    shown["target"] = record.target
    shown["stages"] = msgspec.structs.asdict(record.stages)
    shown["attempts"] = [_readable_attempt(attempt) for attempt in record.attempts]
    return shown


def _readable_attempt(attempt: Attempt) -> dict[str, Any]:
    return {
        **_readable_choice(attempt),
        "pool_tokens": attempt.pool_tokens,
        "prefill": None if attempt.prefill is None else _readable_leg(attempt.prefill),
    }


def _readable_leg(leg: Leg) -> dict[str, Any]:
    return {**_readable_choice(leg), "duration_ms": leg.duration_ms, "cached_tokens": leg.cached_tokens}


def _readable_choice(choice: Attempt | Leg) -> dict[str, Any]:
    decision = choice.decision
    view: dict[str, Any] = plain(decision.view._replace(rows=()))
    del view["rows"], view["session"]  # the candidates are below; whose session it is stays here
    return {
        "policy": decision.policy,
        "target": decision.target,
        "end": choice.end,
        "predicted_tokens": choice.predicted_tokens,
        "expected_tokens": choice.expected_tokens,
        "skipped_filters": list(decision.skipped_filters),
        "view": view,
        "candidates": [_readable_candidate(decision, i) for i in range(len(decision.costs))],
    }


def _readable_candidate(decision: Decision, i: int) -> dict[str, Any]:
    terms = {
        term.name: {
            "unit": term.unit,
            "weight": term.weight,
            "cost": term.costs[i],
            "weighted": term.weight * term.costs[i],
        }
        for term in decision.terms
    }
    return {"cost": decision.costs[i], "terms": terms, **plain(decision.view.rows[i])}


def plain(value: Any) -> Any:
    """The contract's structs as JSON types: field names kept, sets sorted."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        items = [plain(item) for item in value]
        return items if names is None else dict(zip(names, items, strict=True))
    return sorted(value) if isinstance(value, frozenset) else value
