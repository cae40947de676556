"""A filter that keeps a LoRA request away from engines where it would have to wait for an adapter slot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scorers.contract import Filter, Load, Needs, View


@dataclass(frozen=True)
class AdapterRoom(Filter):
    """Drops targets whose adapter slots are all taken by other adapters, running or waiting.

    Requests without an adapter are not filtered. Missing: a row whose engine does not report its adapters or its
    number of slots stays.
    """

    needs = Needs.LOAD

    def keep(self, view: View) -> Sequence[bool]:
        if view.adapter is None:
            return [True] * len(view.rows)
        return [self._fits(view.adapter, row.load) for row in view.rows]

    def _fits(self, adapter: str, load: Load) -> bool:
        if load.adapters is None or load.max_adapters is None:
            return True
        taken = load.adapters | (load.waiting_adapters or frozenset())
        return adapter in taken or len(taken) < load.max_adapters
