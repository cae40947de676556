"""The decision log: every choice with everything that the policy saw, to be replayed by other policies."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import Metric

from router.control.core import Core
from router.control.feature import Feature
from router.features.decision_log.writer import DecisionLogWriter
from router.request.stages import FeaturePath
from router.telemetry.metrics.family import build_family


class DecisionLogFeature(Feature):
    """The log of the config section `records.decision_log`."""

    def __init__(self, core: Core) -> None:
        config = core.config.records.decision_log
        assert config is not None
        self.writer = DecisionLogWriter(config, core.key_secret, core.run_id, core.clock)
        self.path = FeaturePath(ready=self.writer.enter)

    def start(self) -> None:
        self.writer.start()

    async def close(self) -> None:
        await asyncio.to_thread(self.writer.close)

    def describe(self) -> dict[str, Any]:
        """Return how many records were not written."""
        return {"dropped": self.writer.stats.dropped}

    def families(self) -> Iterator[Metric]:
        now = self.writer.stats
        dropped = "records dropped because its queue was full"
        yield build_family("decision_log_records_total", "records written to the decision log", (), [((), now.written)])
        yield build_family("decision_log_dropped_total", dropped, (), [((), now.dropped)])
        yield build_family("decision_log_bytes_total", "bytes written to it, before compression", (), [((), now.bytes)])
        yield build_family("decision_log_failures_total", "writes that failed", (), [((), now.failures)])
