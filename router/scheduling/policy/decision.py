"""What a policy decided about one view: the rows, each term of their costs, and the row that was chosen.

Values only, shared by policies, records, shadows and explanations. Nothing here knows how a decision is made.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from scorers.contract import Row, Scorer, View

Part = Literal["whole", "prefill", "decode"]
"""What is placed: a whole request, or one half of a pair."""


FALLBACK = "fallback"
"""Name of the policy that decides where the one in force failed."""


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


class Regret(NamedTuple):
    """The other choice minus the one that was made: above 0, the other would have waited longer, or found more."""

    ttft_ms: float
    overlap_tokens: int | None  # of the prompt, on the target's GPU or on its way there; None: unknown of one of them


class ShadowChoice(NamedTuple):
    """What a shadow would have chosen, held against the choice that was made."""

    policy: str
    target: str
    difference: Regret
