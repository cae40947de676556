"""Finds the engine that stores a response unknown to this router: from before a restart, or of another router.

A response id is a random number, so all engines are queried for it at the same time: `GET /v1/responses/{id}`.
Misses are remembered, and only a few ids are queried at a time, so that unknown ids cost engines little. If tenants
are isolated, engines are not queried, because an engine cannot determine the tenant of a response.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from router.backends.fetch import Fetch
from router.clock import Clock
from router.fleet.instance import Instance
from router.kvcache.events import TargetId
from router.scheduling.scheduler import Scheduler
from router.tenants.tenant import Tenant, own_name

QUERY_S: Final = 1.0  # time limit for an engine's answer
AT_ONCE: Final = 4  # number of ids queried at the same time
FIND_S: Final = 3.0  # time limit for one id, including the wait for other ids
MISS_S: Final = 10.0  # how long a missing id is not queried again
MISSES_KEPT: Final = 10_000
_ID = re.compile(r"resp_[A-Za-z0-9_-]{1,128}")  # vLLM rejects others


class StoredResponseFinder:
    """Queries the engines of `scheduler`'s fleet through `fetch`."""

    def __init__(self, scheduler: Scheduler, fetch: Fetch, clock: Clock) -> None:
        self._scheduler = scheduler
        self._fetch = fetch
        self._clock = clock
        self._searches = asyncio.Semaphore(AT_ONCE)
        self._missed: dict[str, float] = {}  # ids that no engine had, the oldest first

    async def find(self, response_id: str, tenant: Tenant | None) -> TargetId | None:
        """Return the target that stores a response, and remember it; None if it is unknown and not found."""
        name = own_name(tenant, response_id)
        if (target := self._scheduler.response_target(name)) is not None:
            return target
        if (tenant is not None and tenant.scope is not None) or _ID.fullmatch(response_id) is None:
            return None
        try:
            async with asyncio.timeout(FIND_S), self._searches:
                if (target := self._scheduler.response_target(name)) is not None or self._is_missing(response_id):
                    return target
                target = await self._query_engines(response_id)
        except TimeoutError:  # the queries for other ids took too long
            return None
        if target is None:
            self._missed[response_id] = self._clock.now()
            if len(self._missed) > MISSES_KEPT:
                del self._missed[next(iter(self._missed))]
        else:
            self._scheduler.remember_response(name, target, "" if tenant is None else tenant.name)
        return target

    def _is_missing(self, response_id: str) -> bool:
        missed_s = self._missed.pop(response_id, None)
        if missed_s is None or self._clock.now() - missed_s >= MISS_S:
            return False
        self._missed[response_id] = missed_s
        return True

    async def _query_engines(self, response_id: str) -> TargetId | None:
        instances = [each for each in self._scheduler.fleet if each.may_serve and each.targets]
        stored = await asyncio.gather(*(self._stores(each, response_id) for each in instances))
        found = next((each for each, its in zip(instances, stored, strict=True) if its), None)
        return None if found is None else next(iter(found.targets.values())).id

    async def _stores(self, instance: Instance, response_id: str) -> bool:
        answer = await self._fetch(instance.id, f"/v1/responses/{response_id}", timeout_s=QUERY_S)
        return answer is not None and answer.status == 200
