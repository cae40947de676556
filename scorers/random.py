"""A random choice: the baseline that every other policy has to beat.

The draw is a function of the view (seed, number, target), so a replay draws the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.chance import draws
from scorers.contract import Scorer, Unit, View


@dataclass(frozen=True)
class Random(Scorer):
    """A number between 0 and 1 for each target, drawn anew for each request. Reads nothing that could be
    missing.
    """

    unit = Unit.RAW

    def score(self, view: View) -> Sequence[float]:
        return draws(view.seed, view.number, [row.target for row in view.rows], use="random")
