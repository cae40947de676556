"""The KV store of a fleet without a shared pool."""

from __future__ import annotations

from router.kvcache.events import BlocksPooled, BlocksStored
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from scorers.contract import PoolHit


class NoKvStore:
    """Returns unknown for every prompt."""

    async def lookup(self, known: TokenizedPrompt, origin: HashInputs) -> PoolHit | None:
        """Return `None`."""
        return None

    def on_stored(self, model: str, event: BlocksStored) -> None:
        """Ignore the event."""

    def on_pooled(self, model: str, event: BlocksPooled) -> None:
        """Ignore the event."""

    def start(self) -> None:
        """Start nothing."""

    async def close(self) -> None:
        """Close nothing."""

    def report(self) -> None:
        """Return nothing to report."""
