"""Everything about one decision and its outcome. Written once by the line, read by people, metrics and replays.

A record keeps references (the view, the decision), not copies: the readable form is made only when somebody asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from router.decide.left_out import left_out
from router.decide.why import why
from scorers.contract import Row, Scorer, View

if TYPE_CHECKING:
    from router.decide.differences import Difference
    from router.decide.policy import Policy

Part = Literal["whole", "prefill", "decode"]
"""What is placed: a whole request, or one half of a pair."""

DEATHS_ALLOWED = 1  # of engines that took the request: the second one ends it
PREFILLS_ALLOWED = 2  # prefill halves that fail before a request is no longer split


class Term(NamedTuple):
    """One scorer's part of every row's cost."""

    name: str
    unit: str
    weight: float
    costs: tuple[float, ...]  # unweighted, one per row of the decision


class Decision(NamedTuple):
    """What a policy made of a view: `costs`, the terms' costs and `chosen` are of `rows`, those that filters left."""

    policy: str
    view: View  # as it was asked: with every candidate, but those that a large fleet leaves out
    rows: tuple[Row, ...]
    terms: tuple[Term, ...]
    costs: tuple[float, ...]
    chosen: int
    skipped_filters: tuple[str, ...]  # filters that would have left no row
    learners: tuple[Scorer, ...] = ()  # scorers of the policy that want to hear of this choice and its outcome
    part: Part = "whole"

    @property
    def row(self) -> Row:
        return self.rows[self.chosen]

    @property
    def target(self) -> str:
        return self.rows[self.chosen].target

    @property
    def seen(self) -> View:
        """The view as its scorers saw it, without the rows that the filters dropped."""
        return self.view if len(self.rows) == len(self.view.rows) else self.view._replace(rows=self.rows)

    @property
    def margin(self) -> float | None:
        """By how much the next best row costs more than the chosen one (less than 0: the picker took a dearer one), at
        most: who was left out may come closer. None: there is no other.
        """
        others = self.costs[: self.chosen] + self.costs[self.chosen + 1 :]
        return min(others) - self.costs[self.chosen] if others else None


class ShadowChoice(NamedTuple):
    """What a shadow would have chosen, held against the choice that was made."""

    policy: str
    target: str
    difference: Difference


class Leg(msgspec.Struct, gc=False):
    """The prefill half of a pair: another instance computes the prompt and hands its KV over."""

    decision: Decision
    predicted_tokens: int | None  # as in `Attempt`, of the prefill target
    expected_tokens: int | None
    end: str = "running"  # ok | rejected | connect | busy | died | failed | deadline | cancelled | client_gone
    duration_ms: float | None = None
    cached_tokens: int | None = None  # delivered there
    handed_ids: bool = False  # as in `Attempt`

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
    handed_ids: bool = False  # the engine got the prompt's token ids from us and needed not make them


class Stages(msgspec.Struct, gc=False):
    """Milliseconds that the router itself added, by stage; None where the stage did not run."""

    parse_ms: float | None = None
    tokens_ms: float | None = None
    keys_ms: float | None = None
    pool_ms: float | None = None
    match_ms: float | None = None
    decide_ms: float | None = None
    connect_ms: float | None = None
    door_ms: float | None = None  # waited for room in the fleet's caches


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
    client: str | None = None  # the name of its API key
    policy: Policy | None = None  # which decided, as it was then
    arm: str | None = None  # of the experiment; None: there is none, or the request stands outside of it
    unit: bytes | None = None  # whose arm that is
    asked_by: str | None = None  # the token that asked for this policy, whatever the arm
    blocks: tuple[int, ...] = ()  # the prompt's block keys at every 512 tokens, where a ledger is kept
    attempts: list[Attempt] = []
    shadows: list[ShadowChoice] = []
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

    @property
    def deaths(self) -> int:
        """Of engines that took it, or a pair's prefill half of it, and gave nothing."""
        halves = (attempt.prefill.end for attempt in self.attempts if attempt.prefill is not None)
        return sum(attempt.end == "died" for attempt in self.attempts) + sum(end == "died" for end in halves)

    @property
    def failed_prefills(self) -> int:
        return sum(attempt.end == "prefill" for attempt in self.attempts)


UNSHOWN = frozenset({"arrived_s", "unit", "blocks"})


def readable(record: Record) -> dict[str, Any]:
    """The record for people, as plain JSON types: every candidate with each weighted term, which add up to its cost."""
    shown: dict[str, Any] = {name: getattr(record, name) for name in record.__struct_fields__ if name not in UNSHOWN}
    shown["policy"] = None if record.policy is None else record.policy.name
    shown["policy_digest"] = None if record.policy is None else record.policy.digest
    shown["why"] = why(record.attempts[-1].decision) if record.attempts else None
    shown["shadows"] = [plain(shadow) for shadow in record.shadows]
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
    return {
        "end": choice.end,
        "predicted_tokens": choice.predicted_tokens,
        "expected_tokens": choice.expected_tokens,
        "handed_ids": choice.handed_ids,
        **readable_decision(choice.decision),
    }


def readable_decision(decision: Decision) -> dict[str, Any]:
    """One choice for people: `why` in a sentence, and every candidate that filters left with all that spoke for it.
    Of those that had no row (`left_out`) nothing is known but how many they were.
    """
    view: dict[str, Any] = plain(decision.view._replace(rows=()))
    del view["rows"]  # the candidates are below
    stayed = {row.target for row in decision.rows}
    return {
        "policy": decision.policy,
        "part": decision.part,
        "target": decision.target,
        "why": why(decision),
        "margin": decision.margin,
        "left_out": left_out(decision.view),
        "filtered_out": [row.target for row in decision.view.rows if row.target not in stayed],
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
    return {"cost": decision.costs[i], "terms": terms, **plain(decision.rows[i])}


def plain(value: Any) -> Any:
    """The contract's structs as JSON types: field names kept, sets sorted."""
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        items = [plain(item) for item in value]
        return items if names is None else dict(zip(names, items, strict=True))
    return sorted(value) if isinstance(value, frozenset) else value
