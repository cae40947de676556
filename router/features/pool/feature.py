"""The shared KV pool (Mooncake): how many of a prompt's leading blocks engines can load from the pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from prometheus_client.core import Metric

from router.control.core import Core
from router.control.feature import Feature
from router.features.pool.client import MooncakeStore
from router.features.pool.report import describe_pool, list_families
from router.request.stages import FeaturePath
from router.tasks import Tasks


class PoolFeature(Feature):
    """The shared pool of the config section `pool`."""

    def __init__(self, core: Core) -> None:
        config = core.config.pool
        assert config is not None
        masters = [f"mooncake master {urlsplit(url).netloc}" for url in config.masters]
        for name, url in zip(masters, config.masters, strict=True):
            core.upstreams.add(name, url)
        self.store = MooncakeStore(config, masters, core.upstreams.fetch, Tasks("pool"), core.clock, core.memory)
        core.kv_store = core.scheduler.indexer.observer = self.store
        self.path = FeaturePath(admitted=self.store.enter)

    def start(self) -> None:
        self.store.start()

    async def close(self) -> None:
        await self.store.close()

    def describe(self) -> dict[str, Any]:
        """Return the pool's masters, query outcomes and block names of each model, as plain JSON types."""
        return describe_pool(self.store.report())

    def families(self) -> Iterator[Metric]:
        return list_families(self.store.report())
