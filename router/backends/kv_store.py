"""The interface of a shared KV store, and `NoKvStore`. Queried once per request, never from a scorer."""

from __future__ import annotations

from typing import Protocol

from router.kvcache.events import BlocksPooled, BlocksStored
from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from scorers.contract import PoolHit


class KvStore(Protocol):
    """A pool of KV blocks that all instances share."""

    async def lookup(self, known: TokenizedPrompt, origin: HashInputs) -> PoolHit | None:
        """Return the leading tokens of the prompt that the pool holds and an engine could load; None: unknown.

        Never raises for failures of the store, and never waits for the store longer than the configured deadline.
        The deadline does not cover hashing the blocks, which comes first and takes time for a prompt that was never
        seen.
        """


class NoKvStore:
    """Returns unknown for every prompt."""

    async def lookup(self, known: TokenizedPrompt, origin: HashInputs) -> PoolHit | None:
        """Return None."""
        return None

    def on_stored(self, model: str, event: BlocksStored) -> None:
        """Ignore the event."""

    def on_pooled(self, model: str, event: BlocksPooled) -> None:
        """Ignore the event."""
