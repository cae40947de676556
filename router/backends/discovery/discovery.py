"""Instance discovery: its interface, the description of one instance by a source, and the list of the main
configuration.

A discovery yields *the whole list*, first at once and then after every change; the consumer works out who joined
and who left (`merge.py`, `control/membership.py`). A discovery that cannot read its source yields nothing: the last
list stays in force, and `trouble` describes the problem, because an unreadable source is no reason to drop a fleet.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple, Protocol

from router.config import schema
from router.config.sections.base import url_host
from router.config.sections.discovery import DiscoveredEngines


class DiscoveredInstance(NamedTuple):
    """One instance as one source lists it."""

    config: schema.InstanceConfig
    origin: str  # the entry in the source that lists it, for operators
    uid: str | None = None  # of the pod: another uid at the same name or address is another engine; None: unknown
    accepting: bool = True  # False: it receives no new requests, finishes the open ones, and stays known
    lags: bool = False  # True: its source may list it for a while after it is gone


def configure_engine(engines: DiscoveredEngines, host: str, port: int, **facts: Any) -> schema.InstanceConfig:
    """Return the configuration of an engine at `host` and `port`: the `facts` that its source provides, and the
    rest from `engines`. Raises ValidationError.
    """
    shared = {name: getattr(engines, name) for name in ("api_key_env", "ca_file", "cpu_medium")}
    url = f"{engines.scheme}://{url_host(host)}:{port}"
    return schema.InstanceConfig.model_validate({"url": url, **shared, **facts})


class Discovery(Protocol):
    """A source of the list of instances."""

    @property
    def trouble(self) -> str | None:
        """Return why the list may be out of date, for operators; None when there is no problem."""

    @property
    def confirmed_at(self) -> float | None:
        """Return when the source last answered, on the router's clock; None before the first answer, and for a
        source that needs no query.
        """

    def watch(self) -> AsyncIterator[list[DiscoveredInstance]]:
        """Yield the whole list, ids unique, now and after every change. Ends only if the list can never change."""


class StaticDiscovery:
    """The instances listed in the main configuration: they never change while the router runs."""

    trouble: str | None = None
    confirmed_at: float | None = None

    def __init__(self, instances: Sequence[schema.InstanceConfig]) -> None:
        self._instances = [DiscoveredInstance(config, "fleet.instances") for config in instances]

    async def watch(self) -> AsyncIterator[list[DiscoveredInstance]]:
        """Yield the list."""
        yield list(self._instances)
