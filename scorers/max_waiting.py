"""A filter that keeps requests away from engines with a queue of their own, however much they have cached."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Filter, Needs, View
from scorers.parameters import check_above_0, check_at_least
from scorers.row_loops import few_waiting


@dataclass(frozen=True)
class MaxWaiting(Filter):
    """Drops targets with more than `waiting` requests in the engine's own queue, as reported within `stale_s`.

    Missing: a row whose engine has not reported its queue, or not within `stale_s`, stays.
    """

    needs = Needs.LOAD

    waiting: int = 16
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_at_least(0, waiting=self.waiting)
        check_above_0(stale_s=self.stale_s)

    def keep(self, view: View) -> Sequence[bool]:
        return few_waiting(view.rows, self.waiting, self.stale_s)
