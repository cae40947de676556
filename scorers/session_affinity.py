"""Session affinity: the target of the session's last request, whose cache holds the earlier turns.

    cost = 0               where this session's last request went
           1 - shared      by: program, for a session without one: where its parent's last request went
           1               elsewhere

    shared = the part of the prompt that this target holds

A sub-agent's prompt begins either as its parent's did, with the tools and often the system prompt, or differently.
So the sub-agent is kept with its parent to the extent that they share a beginning, and is otherwise free to go
elsewhere. From its second request on, its target is where its own turns are. NVIDIA Dynamo's parent-aware affinity
(https://docs.nvidia.com/dynamo/dev/agents/session-i-ds) binds all sub-agents to the parent's worker, whatever they
share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from scorers.contract import Needs, Row, Scorer, Unit, View
from scorers.row_loops import all_but

NEEDS = {"session": Needs.SESSION, "program": Needs.SESSION | Needs.CACHE}


@dataclass(frozen=True)
class SessionAffinity(Scorer):
    """0 for the target of the session's last request, 1 for all others; with `by: program`, a session's first
    request costs less than 1 at its parent's target: what is left of its prompt beside what that target holds.

    Missing: without a session, at its first request, or when that target is no candidate, every row costs 1. With
    `by: program` a parent's target costs 0 where its overlap or the prompt's length is unknown.
    """

    needs = Needs.SESSION | Needs.CACHE
    unit = Unit.POINTS

    by: Literal["session", "program"] = "session"

    def __post_init__(self) -> None:
        # per instance: keeping sessions together does not need the work of tokenising and computing block keys
        object.__setattr__(self, "needs", NEEDS[self.by])

    def score(self, view: View) -> Sequence[float]:
        if self.by == "program" and view.last_target is None and view.parent_target is not None:
            parent = view.parent_target
            return [_unshared(row, view.prompt_tokens) if row.target == parent else 1.0 for row in view.rows]
        return all_but(view.rows, view.last_target)


def _unshared(row: Row, prompt_tokens: int | None) -> float:
    """Return the part of the prompt that the target does not hold, between 0 and 1; 0 if the overlap or the
    prompt's length is unknown.
    """
    if row.overlap is None or not prompt_tokens:
        return 0.0
    return 1.0 - min(1.0, max(row.overlap.expected_tokens, row.overlap.disk_tokens) / prompt_tokens)
