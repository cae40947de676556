"""Instances listed in the main configuration: they never change while the router runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from router.config import schema


class StaticDiscovery:
    """Yields the configured list once."""

    trouble: str | None = None

    def __init__(self, instances: Sequence[schema.InstanceConfig]) -> None:
        self._instances = list(instances)

    async def watch(self) -> AsyncIterator[list[schema.InstanceConfig]]:
        """Yield the list."""
        yield list(self._instances)
