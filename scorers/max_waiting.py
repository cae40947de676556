"""Keeps requests away from engines that already let requests wait, however good their cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Filter, Load, Needs, View


@dataclass(frozen=True)
class MaxWaiting(Filter):
    """Drops targets with more than `waiting` requests in the engine's own queue, as it said within `stale_s`.

    Missing: a row whose engine has not told, or not lately, stays.
    """

    needs = Needs.LOAD

    waiting: int = 16
    stale_s: float = 15.0

    def __post_init__(self) -> None:
        if self.waiting < 0:
            raise ValueError(f"waiting: at least 0, not {self.waiting}")
        if self.stale_s <= 0:
            raise ValueError(f"stale_s: an age above 0 s, not {self.stale_s}")

    def keep(self, view: View) -> Sequence[bool]:
        return [not self._too_many(row.load) for row in view.rows]

    def _too_many(self, load: Load) -> bool:
        if load.waiting is None or load.metrics_age_s is None or load.metrics_age_s > self.stale_s:
            return False
        return load.waiting > self.waiting
