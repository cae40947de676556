"""The shared pool is queried for the prompt's prefix before a target is chosen."""

from __future__ import annotations

from typing import final

from router.backends.kv_store import KvStore
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.request.request import Request
from router.request.services import Services
from scorers.contract import Needs


@final
class PoolStage:
    def __init__(self, store: KvStore) -> None:
        self._store = store

    async def enter(self, request: Request, services: Services) -> None:
        """Find the prompt's prefix in the pool, if a policy in use needs it."""
        served, tokens, override, scheduler = request.served, request.tokens, request.override, services.scheduler
        request.pool_hit = None
        needs = scheduler.selector.needs if override is None else scheduler.selector.needs | override.policy.needs
        if served is None or not isinstance(tokens, TokenizedPrompt) or Needs.POOL not in needs:
            return
        started_s = services.clock.now()
        request.pool_hit = await self._store.lookup(tokens, scheduler.hash_inputs(request.prompt.salt, served))
        request.durations.pool_ms = (services.clock.now() - started_s) * 1e3
