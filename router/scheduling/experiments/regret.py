"""Two choices for one view, held against each other: what shadows, plans and replays have to say.

Nobody knows what would have happened elsewhere, so both choices are priced by one yardstick: the predicted time to
first token of the chosen row (`scorers/expected_ttft.py`), whatever the policies themselves minimise. It is a
prediction by the view's own facts, no more; where live answers are to be had, an experiment says more.
"""

from __future__ import annotations

from collections import Counter
from operator import attrgetter
from typing import NamedTuple

from router.scheduling.experiments.imbalance import Imbalance
from router.scheduling.policy.decision import Regret
from scorers.contract import Row, View
from scorers.expected_ttft import ExpectedTtft
from scorers.ttft import prompt_of, ttfts_ms

YARDSTICK = ExpectedTtft()
TARGET = attrgetter("target")


SAME = Regret(0.0, 0)


def difference(view: View, made: Row, other: Row) -> Regret:
    """Priced with these two rows alone, which is a tenth of pricing all: what one of them has not told is taken from
    the other, not from the fleet's mean.
    """
    if made.target == other.target:
        return SAME
    both = (made, other)
    costs = ttfts_ms(both, prompt_of(view, both), YARDSTICK.stale_s)
    found = None
    if made.overlap is not None and other.overlap is not None:
        found = other.overlap.expected_tokens - made.overlap.expected_tokens
    return Regret(costs[1] - costs[0], found)


class ChoiceComparison(NamedTuple):
    """A comparison over many decisions. Means are over all of them, equal choices included; None: no decision."""

    decisions: int
    agreed: int
    ttft_ms: float | None  # predicted, the other minus what was made, per decision
    overlap_tokens: float | None  # the same, over the decisions where both are known
    uneven_made: float | None  # load spread, see `Imbalance.uneven`
    uneven_other: float | None
    moves: dict[tuple[str, str], int]  # from target, to target: where they differ
    failed: int  # views on which the other policy broke

    @property
    def agreement(self) -> float | None:
        return self.agreed / self.decisions if self.decisions else None


class RegretSummary:
    """Adds differences up, in constant memory but for the pairs of targets. `failed` is the owner's to count."""

    def __init__(self) -> None:
        self.failed = 0
        self._decisions = self._agreed = self._known = 0
        self._ttft_ms = self._overlap_tokens = 0.0
        self._made, self._other = Imbalance(), Imbalance()
        self._offered: set[str] = set()
        self._most_offered = 0  # at once: of a large fleet most have no row
        self._moves: Counter[tuple[str, str]] = Counter()

    def add(self, view: View, made: Row, other: Row) -> Regret:
        found = difference(view, made, other)
        self._decisions += 1
        self._ttft_ms += found.ttft_ms
        if found.overlap_tokens is not None:
            self._known += 1
            self._overlap_tokens += found.overlap_tokens
        if made.target == other.target:
            self._agreed += 1
        else:
            self._moves[made.target, other.target] += 1
        self._offered.update(map(TARGET, view.rows))
        self._most_offered = max(self._most_offered, len(view.rows) + view.others)
        self._made.add(made.target)
        self._other.add(other.target)
        return found

    def summary(self) -> ChoiceComparison:
        n = self._decisions
        offered = max(len(self._offered), self._most_offered)
        return ChoiceComparison(
            decisions=n,
            agreed=self._agreed,
            ttft_ms=self._ttft_ms / n if n else None,
            overlap_tokens=self._overlap_tokens / self._known if self._known else None,
            uneven_made=self._made.ratio(offered),
            uneven_other=self._other.ratio(offered),
            moves=dict(self._moves),
            failed=self.failed,
        )
