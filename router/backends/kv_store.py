"""What the shared pool's room offers, whatever store lies behind it. Asked once per request, never from a scorer."""

from __future__ import annotations

from typing import Protocol

from router.kvcache.tokenized_prompt import HashInputs, TokenizedPrompt
from scorers.contract import PoolHit


class KvStore(Protocol):
    async def lookup(self, known: TokenizedPrompt, origin: HashInputs) -> PoolHit | None:
        """Leading tokens of the prompt that the pool holds and an engine could load. None: unknown.

        Never raises for trouble over there, and never waits for it longer than the configured deadline. Naming the
        blocks comes before that, and costs what hashing a prompt costs that was never seen.
        """
