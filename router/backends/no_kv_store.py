"""No shared pool under this fleet: nothing to ask, nothing known."""

from __future__ import annotations

from router.kvcache.events import BlocksPooled, BlocksStored
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from scorers.contract import PoolHit


class NoKvStore:
    async def lookup(self, known: TokenizedPrompt, origin: HashInputs) -> PoolHit | None:
        return None

    def on_stored(self, model: str, event: BlocksStored) -> None:
        """`Witness.stored`."""

    def on_pooled(self, model: str, event: BlocksPooled) -> None:
        """`Witness.pooled`."""

    def start(self) -> None:
        """Nothing runs."""

    async def close(self) -> None:
        """Nothing ran."""

    def report(self) -> None:
        """Nothing to tell."""
