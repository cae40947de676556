"""Everything about one decision and its outcome. Written once by the line, read by people, metrics and replays.

A record keeps references (the view, the decision), not copies: the readable form is made only when somebody asks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from scorers.contract import View


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

    @property
    def target(self) -> str:
        return self.view.rows[self.chosen].target


class Attempt(msgspec.Struct):
    """One choice and how it went."""

    decision: Decision
    predicted_tokens: int | None  # overlap that the index promised for the chosen target, in its fastest tier
    expected_tokens: int | None  # the same, counting what was just sent there
    end: str = "running"  # ok | connect | busy | died | broken | client_gone | deadline | refused


class Stages(msgspec.Struct):
    """Milliseconds that the router itself added, by stage; None where the stage did not run."""

    parse_ms: float | None = None
    tokens_ms: float | None = None
    keys_ms: float | None = None
    match_ms: float | None = None
    decide_ms: float | None = None
    connect_ms: float | None = None


class Record(msgspec.Struct):
    """One request, from the choice to the end."""

    id: str
    number: int
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
    plain: dict[str, Any] = {
        name: getattr(record, name) for name in record.__struct_fields__ if name not in ("attempts", "stages")
    }
    plain["target"] = record.target
    plain["stages"] = msgspec.structs.asdict(record.stages)
    plain["attempts"] = [_readable_attempt(attempt) for attempt in record.attempts]
    return plain


def _readable_attempt(attempt: Attempt) -> dict[str, Any]:
    decision = attempt.decision
    candidates = []
    for i, row in enumerate(decision.view.rows):
        candidates.append(
            {
                "target": row.target,
                "cost": decision.costs[i],
                "terms": {
                    t.name: {"unit": t.unit, "weight": t.weight, "cost": t.costs[i], "weighted": t.weight * t.costs[i]}
                    for t in decision.terms
                },
                "overlap": row.overlap._asdict() if row.overlap is not None else None,
                "load": {k: sorted(v) if isinstance(v, frozenset) else v for k, v in row.load._asdict().items()},
                "speed": {
                    k: v._asdict() if hasattr(v, "_asdict") else v for k, v in row.speed._asdict().items()
                },
                "block_tokens": row.block_tokens,
                "capacity_tokens": row.capacity_tokens,
            }
        )
    view = {k: v for k, v in decision.view._asdict().items() if k not in ("rows", "pool", "session")}
    view["pool"] = decision.view.pool._asdict() if decision.view.pool is not None else None
    return {
        "policy": decision.policy,
        "target": decision.target,
        "end": attempt.end,
        "predicted_tokens": attempt.predicted_tokens,
        "expected_tokens": attempt.expected_tokens,
        "skipped_filters": list(decision.skipped_filters),
        "view": view,
        "candidates": candidates,
    }
