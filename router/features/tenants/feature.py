"""Limits and usage of tenants: count their requests, refuse requests beyond their limits, and keep their usage."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI

from router.control.core import Core
from router.control.feature import Feature
from router.features.tenants.api import add_usage_routes
from router.features.tenants.metering import Metering
from router.features.tenants.peers import SharedTenants
from router.features.tenants.stages import TenantStages
from router.features.tenants.tenant_tables import TenantTables
from router.request.stages import FeaturePath


class TenantsFeature(Feature):
    """The tenants of clients that must identify themselves."""

    def __init__(self, core: Core) -> None:
        clients, metrics = core.config.clients, core.metrics
        tables = TenantTables(metrics.counter, metrics.model_label, clients.tenants)
        self.metering = Metering(clients, core.run_id, tables, core.scheduler.fleet.context_tokens, core.clock)
        self._tasks = core.tasks
        stages = TenantStages(self.metering.meter)
        self.path = FeaturePath(
            arrived=stages.count,
            read=stages.check,
            resolved=stages.limit,
            tokenized=stages.reserve,
            on_refusal=stages.on_refusal,
            filter_cards=stages.filter_cards,
        )
        if core.peers is not None:
            shared = SharedTenants(self.metering.ledger, self.metering.usage, core.duty, core.peers)
            self.metering.reclaim = shared.reclaim
            self.shared = (shared,)

    def take_duties(self) -> None:
        """Open the file of the tenants' usage at this host."""
        self.metering.open_file(self._tasks)

    async def leave_duties(self) -> None:
        await self.metering.close()

    async def close(self) -> None:
        await self.metering.close()

    def add_routes(self, app: FastAPI, read: list[Any], write: list[Any]) -> None:
        add_usage_routes(app, self.metering, read)
