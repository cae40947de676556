"""A policy's decision about one view: the rows, each term of their costs, and the chosen row.

This module contains only values, shared by policies, records, shadows and explanations, not the way in which a
decision is made.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from router.config.schema import FALLBACK_POLICY
from scorers.contract import Row, Scorer, View

Part = Literal["whole", "prefill", "decode"]
"""The unit of placement: a whole request, or one half of a pair."""


FALLBACK = FALLBACK_POLICY
"""Name of the policy that decides if the active one fails."""


class Term(NamedTuple):
    """One scorer's part of every row's cost."""

    name: str
    unit: str
    weight: float
    costs: tuple[float, ...]  # unweighted, one per row of the decision


class Decision(NamedTuple):
    """The result of a policy. `costs`, the terms' costs and `chosen` refer to `rows`, the rows that the filters
    kept.
    """

    policy: str
    view: View  # with every candidate except those that the shortlist of a large fleet omits
    rows: tuple[Row, ...]
    terms: tuple[Term, ...]
    costs: tuple[float, ...]
    chosen: int
    skipped_filters: tuple[str, ...]  # filters that would have dropped every row
    learners: tuple[Scorer, ...] = ()  # scorers of the policy that learn from this choice
    part: Part = "whole"

    @property
    def row(self) -> Row:
        """The chosen row."""
        return self.rows[self.chosen]

    @property
    def target(self) -> str:
        """The chosen target."""
        return self.rows[self.chosen].target

    @property
    def seen(self) -> View:
        """The view that the scorers read: without the rows that the filters dropped."""
        return self.view if len(self.rows) == len(self.view.rows) else self.view._replace(rows=self.rows)

    @property
    def margin(self) -> float | None:
        """Cost of the next best row minus the cost of the chosen row; None if there is no other row. Negative if
        the picker chose a more expensive row. This is an upper bound: a candidate without a row may cost less than
        the next best row.
        """
        others = self.costs[: self.chosen] + self.costs[self.chosen + 1 :]
        return min(others) - self.costs[self.chosen] if others else None


class Regret(NamedTuple):
    """The other choice minus the actual choice: above 0, the other would have waited longer or had more cached."""

    ttft_ms: float
    overlap_tokens: int | None  # on the GPU or just sent to the target; None if unknown for one of the two


class ShadowChoice(NamedTuple):
    """The choice of a shadow, compared with the actual one."""

    policy: str
    target: str
    difference: Regret
