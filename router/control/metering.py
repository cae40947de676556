"""The limits and the usage of tenants in one process: their books, the file that keeps them, and who else is told.

One process of a router has the file, the leader; followers tell it what they counted. It is written every second and at
the end, so that a process that is killed loses at most that second. While it cannot be written, what is to be written
waits in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import nlargest
from typing import NamedTuple

from router.clock import Clock
from router.config.sections.clients import ClientsConfig, TenantConfig, TenantLimits
from router.control.workers.follower import FollowerWorker
from router.control.workers.leader import LeaderWorker
from router.control.workers.tenants import SHARE_S, USAGE_S, FollowerTenants, LeaderTenants
from router.errors import RequestRefused
from router.request.metering import Meter
from router.tasks import Tasks
from router.telemetry.metrics.tenant_tables import TenantTables
from router.telemetry.usage_store import UsageStore, UsageUnwritten
from router.tenants.ledger import DAY_S, Ledger, LimitName, LimitUse
from router.tenants.usage import UsageRow
from router.tenants.usage_book import UsageBook

log = logging.getLogger("warmroute.tenants")

TENANTS_PER_TURN = 100  # described in one turn of the event loop


class TenantUse(NamedTuple):
    """What a tenant uses of its limits now; without limits that are not known in this process."""

    tenant: str
    limits: dict[LimitName, LimitUse]

    def fullest(self) -> float:
        """Return the used share of the limit that it is nearest to."""
        return max((limit.used / limit.allowed for limit in self.limits.values()), default=0.0)


class Metering:
    """`worker` None: this is the only process. `run_id` and `context_tokens` as elsewhere."""

    def __init__(
        self,
        config: ClientsConfig,
        run_id: str,
        worker: LeaderWorker | FollowerWorker | None,
        tables: TenantTables,
        context_tokens: Callable[[str], int | None],
        clock: Clock,
    ) -> None:
        """Raise ConfigError for a usage file that cannot be used."""
        self._config = config
        self._clock = clock
        self._unwritten = ""  # why the last write failed
        self._lock = asyncio.Lock()  # held while the file is used
        follows = isinstance(worker, FollowerWorker)
        self._store = UsageStore(config.usage_file) if self.active and not follows else None
        self._ledger = Ledger(config.prices, clock, run_id if self._store is None else self._store.owner)
        self._usage = UsageBook()
        self.meter = Meter(self._ledger, self._usage, tables, context_tokens, clock)
        self.leader: LeaderTenants | None = None
        self._follower: FollowerTenants | None = None
        if self._store is not None:
            for tenant, spent in self._store.spent(self._today()).items():
                self._ledger.restore(tenant, spent)
        if isinstance(worker, FollowerWorker):
            self._follower = worker.tenants = FollowerTenants(self._ledger, self._usage, worker.send)
        elif worker is not None:
            self.leader = worker.tenants = LeaderTenants(self._ledger, self._usage, worker.channels)

    @property
    def active(self) -> bool:
        """Requests need a tenant."""
        return self._config.identifies

    def start(self, tasks: Tasks) -> None:
        """Write and tell from now on."""
        if not self.active:
            return
        tasks.supervise("usage", self._write_always)
        if (shared := self._follower or self.leader) is not None:
            tasks.supervise("limits of tenants", lambda: _tell_always(shared))

    async def close(self) -> None:
        """Write what is left, and close the file."""
        if self._follower is not None:
            self._follower.tell_usage()
        if self._store is None:
            return
        await self.write()
        async with self._lock:
            store, self._store = self._store, None
            await asyncio.to_thread(store.close)

    async def write(self) -> None:
        """Write what was counted since the last call."""
        async with self._lock:
            if self._store is None or not (rows := self._usage.take()):
                return
            try:
                await asyncio.to_thread(self._store.add, rows)
            except UsageUnwritten as error:
                for row in rows:
                    self._usage.add(row)
                if str(error) != self._unwritten:
                    log.error("clients.usage_file: trying again every %g s: %s", USAGE_S, error)
                self._unwritten = str(error)
                return
            if self._unwritten:
                log.info("clients.usage_file: it can be written again")
                self._unwritten = ""

    async def read(self, first: int | None, last: int | None) -> list[UsageRow]:
        """Return what tenants used from the day `first` to the day `last`, counted from the epoch, by day, tenant and
        model; None: today. Raises `RequestRefused` when the file cannot be read.
        """
        await self.write()
        today = self._today()
        async with self._lock:
            if self._store is None:
                return []
            try:
                days = today if first is None else first, today if last is None else last
                return await asyncio.to_thread(self._store.read, *days)
            except UsageUnwritten as error:
                raise RequestRefused(f"the usage cannot be read: {error}", code="usage_unreadable") from error

    async def describe_limits(self, most: int) -> list[TenantUse]:
        """Return what tenants use of their limits now, those nearest to one of them first, at most `most`. Tenants of
        which nothing counts now may be missing.
        """
        found = []
        for number, tenant in enumerate(self._ledger.tenants()):
            if number % TENANTS_PER_TURN == 0:
                await asyncio.sleep(0)  # for requests
            limits = self._ledger.last_limits(tenant) or self._find_limits(tenant)
            found.append(TenantUse(tenant, {} if limits is None else self._ledger.use(tenant, limits)))
        return nlargest(most, found, key=TenantUse.fullest)

    def _find_limits(self, tenant: str) -> TenantLimits | None:
        """Return the limits of a tenant that had no request here; None: it has none, or its tokens say its class."""
        jwt = self._config.jwt
        if jwt is not None and jwt.class_claim is not None:
            return None
        name = self._config.tenants.get(tenant, TenantConfig()).service_class
        found = self._config.service_classes.get(name)
        return None if found is None else found.limits

    def _today(self) -> int:
        return int(self._clock.wall() // DAY_S)

    async def _write_always(self) -> None:
        while True:
            await asyncio.sleep(USAGE_S)
            if self._follower is not None:
                self._follower.tell_usage()
            else:
                await self.write()


async def _tell_always(shared: FollowerTenants | LeaderTenants) -> None:
    while True:
        await asyncio.sleep(SHARE_S)
        shared.tell()
