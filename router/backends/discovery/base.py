"""The interface of instance discovery, and the static list of the main configuration.

A discovery yields *the whole list*, first at once and then after every change; the consumer works out who joined and
who left. One that cannot read its source yields nothing: the last list stays in force, and `trouble` says what is
wrong, because an unreadable file is no reason to drop a fleet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from router.config import schema


class Discovery(Protocol):
    """A source of the list of instances."""

    @property
    def trouble(self) -> str | None:
        """Return why the list may be out of date, for operators; `None` when there is no problem."""

    def watch(self) -> AsyncIterator[list[schema.InstanceConfig]]:
        """Yield the whole list, now and after every change. Ids are unique in it. Ends only if the list can never
        change.
        """


class StaticDiscovery:
    """The instances listed in the main configuration: they never change while the router runs."""

    trouble: str | None = None

    def __init__(self, instances: Sequence[schema.InstanceConfig]) -> None:
        self._instances = list(instances)

    async def watch(self) -> AsyncIterator[list[schema.InstanceConfig]]:
        """Yield the list."""
        yield list(self._instances)
