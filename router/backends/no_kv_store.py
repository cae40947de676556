"""No shared pool under this fleet: nothing to ask, nothing known."""

from __future__ import annotations

from router.kvcache.events import Pooled, Stored
from router.kvcache.tokenized_prompt import Known, Origin
from scorers.contract import PoolHit


class NoPool:
    async def held(self, known: Known, origin: Origin) -> PoolHit | None:
        return None

    def stored(self, model: str, event: Stored) -> None:
        """`Witness.stored`."""

    def pooled(self, model: str, event: Pooled) -> None:
        """`Witness.pooled`."""

    def start(self) -> None:
        """Nothing runs."""

    async def close(self) -> None:
        """Nothing ran."""

    def report(self) -> None:
        """Nothing to tell."""
