"""LoRA affinity: a low cost where the request's adapter is active or a slot is free.

    cost   0    its adapter is active there
           0.2  a slot is free
           0.4  other requests for its adapter wait there for a slot
           1    all slots are taken by other adapters

This is llm-d's `lora-affinity-scorer` inverted (1.0, 0.8, 0.6, 0.0), tried in this order. A slot counts once even
if its adapter is both running and waiting; llm-d adds the two lists up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Load, Needs, Scorer, Unit, View
from scorers.parameters import check_above_0
from scorers.polled import read_gauge

ACTIVE, ROOM, WAITING, FULL = 0.0, 0.2, 0.4, 1.0


@dataclass(frozen=True)
class LoraAffinity(Scorer):
    """0 where the request's adapter runs, 0.2 where a slot is free, 0.4 where its adapter waits for one, else 1.

    A request without an adapter needs no slot: every row costs 0. Missing: a row whose engine does not report its
    adapters or its number of slots, or not within `stale_s`, gets the mean of the others; if none reports them, all
    cost 0.
    """

    needs = Needs.LOAD
    unit = Unit.POINTS

    stale_s: float = 15.0

    def __post_init__(self) -> None:
        check_above_0(stale_s=self.stale_s)

    def score(self, view: View) -> Sequence[float]:
        adapter = view.adapter
        if adapter is None:
            return [0.0] * len(view.rows)
        return read_gauge([row.load for row in view.rows], lambda load: _cost(load, adapter), self.stale_s)


def _cost(load: Load, adapter: str) -> float | None:
    if load.adapters is None or load.max_adapters is None:
        return None
    if adapter in load.adapters:
        return ACTIVE
    waiting = load.waiting_adapters or frozenset()
    if len(load.adapters | waiting) < load.max_adapters:
        return ROOM
    return WAITING if adapter in waiting else FULL
