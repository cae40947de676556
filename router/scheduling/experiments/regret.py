"""Regret: two choices for one view compared, for shadows, dry runs and replays.

The outcome of the other choice is unknown, so both choices are priced by one yardstick: the predicted time to first
token of the chosen row (`scorers/expected_ttft.py`), whatever the policies themselves minimise. The prediction uses
only the facts in the view; if live answers are possible, an experiment is better evidence.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from router.scheduling.experiments.arm_metrics import TARGETS, Imbalance
from router.scheduling.policy.decision import Regret
from scorers.contract import Row, View
from scorers.expected_ttft import ExpectedTtft
from scorers.ttft import prompt_of, ttfts_ms

MOVES = 100_000  # maximum number of pairs of targets that are counted
YARDSTICK = ExpectedTtft()
SAME = Regret(0.0, 0)


def compute_regret(view: View, actual: Row, other: Row) -> Regret:
    """Return the regret of the choice `actual` compared with `other`. Only these two rows are priced, which takes a
    tenth of the time for all rows: a value that one row does not report is taken from the other row, not from the
    fleet's mean.
    """
    if actual.target == other.target:
        return SAME
    both = (actual, other)
    costs = ttfts_ms(both, prompt_of(view, both), YARDSTICK.stale_s)
    overlap_tokens = None
    if actual.overlap is not None and other.overlap is not None:
        overlap_tokens = other.overlap.expected_tokens - actual.overlap.expected_tokens
    return Regret(costs[1] - costs[0], overlap_tokens)


class ChoiceComparison(NamedTuple):
    """A comparison over many decisions. Means are over all decisions, including equal choices; None without
    decisions.
    """

    decisions: int
    agreed: int
    ttft_ms: float | None  # predicted, other minus actual, per decision
    overlap_tokens: float | None  # other minus actual, per decision for which both are known
    uneven_made: float | None  # see `Imbalance.ratio`
    uneven_other: float | None
    moves: dict[tuple[str, str], int]  # (from, to): where the choices differ
    failed: int  # views on which the other policy failed

    @property
    def agreement(self) -> float | None:
        """Share of equal choices; None without decisions."""
        return self.agreed / self.decisions if self.decisions else None


class RegretSummary:
    """Sums of regrets, in constant memory except for targets and pairs of targets. The owner counts `failed`."""

    def __init__(self) -> None:
        self.failed = 0
        self._decisions = self._agreed = self._known = 0
        self._ttft_ms = self._overlap_tokens = 0.0
        self._made, self._other = Imbalance(), Imbalance()
        self._offered: set[str] = set()
        self._most_offered = 0  # for one decision: in a large fleet most candidates have no row
        self._moves: Counter[tuple[str, str]] = Counter()

    def add(self, view: View, actual: Row, other: Row) -> Regret:
        """Add a decision and return its regret."""
        regret = compute_regret(view, actual, other)
        self._decisions += 1
        self._ttft_ms += regret.ttft_ms
        if regret.overlap_tokens is not None:
            self._known += 1
            self._overlap_tokens += regret.overlap_tokens
        if actual.target == other.target:
            self._agreed += 1
        elif (move := (actual.target, other.target)) in self._moves or len(self._moves) < MOVES:
            self._moves[move] += 1
        if len(self._offered) < TARGETS:
            self._offered.update([row.target for row in view.rows])
        self._most_offered = max(self._most_offered, len(view.rows) + view.others)
        self._made.add(actual.target)
        self._other.add(other.target)
        return regret

    def summary(self) -> ChoiceComparison:
        """Return the comparison so far."""
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
