"""Traces of requests, exported by OTLP."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

from prometheus_client.core import Metric

from router.config.sections.base import split_base_url
from router.control.core import Core
from router.control.feature import Feature
from router.features.tracing.build import build_tracing
from router.features.tracing.spans import Address
from router.request.stages import FeaturePath
from router.telemetry.metrics.family import build_family, by_label


class TracingFeature(Feature):
    """The spans of section `tracing`. Raises `ConfigError` for missing packages or an invalid setting."""

    def __init__(self, core: Core) -> None:
        config, fleet = core.config, core.scheduler.fleet
        assert config.tracing is not None

        def address(target: str) -> Address | None:
            instance = fleet.get(target.rpartition("/")[0])  # called in a thread, where nothing may be built
            return None if instance is None else split_base_url(instance.config.url)

        continues = "traceparent" not in {name.lower() for name in config.edge.strip_headers}
        self.tracing = build_tracing(
            config.tracing, os.environ, address, core.clock, instance=core.run_id, continues=continues
        )
        self.path = FeaturePath(ready=self.tracing.enter, on_refusal=self.tracing.on_refusal)

    def start(self) -> None:
        self.tracing.start()

    async def close(self) -> None:
        await asyncio.to_thread(self.tracing.close)

    def families(self) -> Iterator[Metric]:
        meaning = (
            "requests whose spans were to be exported, by end: exported, dropped (the queue was full), failed "
            "(the receiver did not take them)"
        )
        yield build_family("traces_total", meaning, ("end",), by_label(self.tracing.stats._asdict()))
