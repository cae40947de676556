"""Scorers for tests of whoever uses scorers: one that always wants the same target, and one that learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Row, Scorer, Unit, View

BROKEN = "broken"


@dataclass
class Fixed(Scorer):
    """Always the same target, or always an error."""

    unit = Unit.RAW

    target: str = BROKEN

    def score(self, view: View) -> Sequence[float]:
        if self.target == BROKEN:
            raise RuntimeError("boom")
        return [float(row.target != self.target) for row in view.rows]


@dataclass
class Pupil(Scorer):
    """Goes elsewhere each time: it changes its mind with every choice."""

    unit = Unit.RAW

    def __post_init__(self) -> None:
        self.lessons = 0

    def score(self, view: View) -> Sequence[float]:
        return [float(i != self.lessons % len(view.rows)) for i in range(len(view.rows))]

    def picked(self, view: View, row: Row) -> None:
        self.lessons += 1
