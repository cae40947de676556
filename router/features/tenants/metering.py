"""The limits and the usage of tenants in one process: their books, and the usage file.

On each host the process on duty has the file. Other workers send it what they counted (`tenants/peers.py`), except
for what is left when they stop. The file is written every second and at the end, so a process that is killed loses
at most one second. While the file cannot be written, the usage waits in memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from heapq import nlargest
from typing import NamedTuple

from router.clock import Clock
from router.config.sections.clients import ClientsConfig, TenantConfig, TenantLimits
from router.errors import ConfigError, RequestRefused
from router.features.tenants.ledger import Ledger, LimitName, LimitUse
from router.features.tenants.meter import Meter
from router.features.tenants.tenant_tables import TenantTables
from router.features.tenants.usage import UsageRow
from router.features.tenants.usage_book import UsageBook
from router.features.tenants.usage_store import UsageStore, UsageUnwritten
from router.tasks import Tasks

log = logging.getLogger("warmroute.tenants")

WRITE_S = 1.0
TENANTS_PER_TURN = 100  # described in one turn of the event loop


class TenantUse(NamedTuple):
    """Present use of a tenant's limits, as far as they are known in this process."""

    tenant: str
    limits: dict[LimitName, LimitUse]

    def fullest(self) -> float:
        """Return the used share of the limit that the tenant is nearest to."""
        return max((limit.used / limit.allowed for limit in self.limits.values()), default=0.0)


class Metering:
    """The ledger, the usage and the meter of one process. `run_id` is its first `Ledger.owner`; `context_tokens` is
    as in `Meter`.
    """

    def __init__(
        self,
        config: ClientsConfig,
        run_id: str,
        tables: TenantTables,
        context_tokens: Callable[[str], int | None],
        clock: Clock,
    ) -> None:
        self._config = config
        self._clock = clock
        self._unwritten = ""  # why the last write failed
        self._lock = asyncio.Lock()  # held while the file is used
        self._store: UsageStore | None = None  # None: another process of this host has it
        self.ledger = Ledger(config.prices, clock, run_id)
        self.usage = UsageBook()
        self.meter = Meter(self.ledger, self.usage, tables, context_tokens, clock)
        self.reclaim: Callable[[], None] = lambda: None
        """Put unacknowledged usage back into `usage`, for the last write; see `SharedTenants`."""

    def open_file(self, tasks: Tasks) -> None:
        """Write the usage from now on, and continue with today's spending in the file. Raises ConfigError for a
        usage file that cannot be used.
        """
        self._store = UsageStore(self._config.usage_file)
        self.ledger.adopt(self._store.owner, self._store.spent(self.ledger.today()))
        tasks.supervise("usage", self._write_always)

    async def close(self) -> None:
        """Write what is left, and close the file. All workers of a host stop at once, so each writes what the
        worker on duty has not acknowledged.
        """
        self.reclaim()
        if self._store is None and self._config.usage_file is not None and self.usage:
            try:
                self._store = await asyncio.to_thread(UsageStore, self._config.usage_file)
            except ConfigError as error:
                log.error("usage that no process has taken over is lost: %s", error)
        if self._store is None:
            return
        await self.write()
        async with self._lock:
            store, self._store = self._store, None
            await asyncio.to_thread(store.close)

    async def write(self) -> None:
        """Write what was counted since the last call."""
        async with self._lock:
            if self._store is None or not (rows := self.usage.take()):
                return
            try:
                await asyncio.to_thread(self._store.add, rows)
            except UsageUnwritten as error:
                for row in rows:
                    self.usage.add(row)
                if str(error) != self._unwritten:
                    log.error("clients.usage_file: trying again every %g s: %s", WRITE_S, error)
                self._unwritten = str(error)
                return
            if self._unwritten:
                log.info("clients.usage_file: it can be written again")
                self._unwritten = ""

    async def read(self, first: int | None, last: int | None) -> list[UsageRow]:
        """Return the use of tenants from the day `first` to the day `last`, by day, tenant and model. Days are
        counted from the epoch; None: today. Raises `RequestRefused` when the file cannot be read.
        """
        await self.write()
        today = self.ledger.today()
        async with self._lock:
            if self._store is None:
                return []
            try:
                days = today if first is None else first, today if last is None else last
                return await asyncio.to_thread(self._store.read, *days)
            except UsageUnwritten as error:
                raise RequestRefused(f"the usage cannot be read: {error}", code="usage_unreadable") from error

    async def describe_limits(self, most: int) -> list[TenantUse]:
        """Return the present use of at most `most` tenants' limits, the tenants nearest to a limit first. Tenants
        without anything that counts now may be missing.
        """
        found = []
        for number, tenant in enumerate(self.ledger.tenants()):
            if number % TENANTS_PER_TURN == 0:
                await asyncio.sleep(0)  # let requests run
            limits = self.ledger.last_limits(tenant) or self._find_limits(tenant)
            found.append(TenantUse(tenant, {} if limits is None else self.ledger.use(tenant, limits)))
        return nlargest(most, found, key=TenantUse.fullest)

    def _find_limits(self, tenant: str) -> TenantLimits | None:
        """Return the limits of a tenant that had no request here; None if it has none, or if its class comes from
        its tokens.
        """
        jwt = self._config.jwt
        if jwt is not None and jwt.class_claim is not None:
            return None
        name = self._config.tenants.get(tenant, TenantConfig()).service_class
        found = self._config.service_classes.get(name)
        return None if found is None else found.limits

    async def _write_always(self) -> None:
        while True:
            await asyncio.sleep(WRITE_S)
            await self.write()
