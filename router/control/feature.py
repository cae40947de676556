"""A feature as the composition root knows it: what it is built from, and what it gives.

A feature is one folder of `router/features`. Its module `feature` has a subclass of `Feature`, which the
composition root builds from the `Core` where the feature is configured, and does not import elsewhere.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI
from prometheus_client.core import Metric

from router.control.peers.parts import SharedPart
from router.prompt.prompt import Prompt
from router.proxy.listeners import Listener
from router.request.stages import FeaturePath
from router.tenants.tenant import Tenant

ReadBody = Callable[[bytes], Awaitable[Prompt]]
"""Reads a body that has changed as the request's own was read."""

ResolveName = Callable[[Prompt, bytes, Tenant | None, ReadBody], Awaitable[Prompt]]
"""Returns the prompt for the model that its name stands for; the bytes are the body that it was read from."""


class Feature:
    """A capability beside the core. Whatever a feature does not define does nothing."""

    path: FeaturePath = FeaturePath()
    shared: Sequence[SharedPart] = ()  # state on which processes agree; empty where there is only one
    listener: Listener | None = None  # accepts connections at the process on duty
    resolve_name: ResolveName | None = None  # None: it gives models no other names

    def start(self) -> None:
        """Start what runs in every process. The listeners are bound, and accept no connections yet."""

    def take_duties(self) -> None:
        """Start what only one process of a host does: this one, from now on. Raises `ConfigError`."""

    async def leave_duties(self) -> None:
        """End what `take_duties` has started: another process of the host has the duties from now on."""

    async def close(self) -> None:
        """End what was started, and write what is left. All requests have ended."""

    def on_drain(self, instance: str, on: bool) -> bool:
        """An instance is to be drained, or no longer. Return whether the drain waits for this feature."""
        return False

    def describe(self) -> Any:
        """Return its state for the admin API, as plain JSON types; None: it has none to show."""

    def describe_instance(self, instance: str) -> Mapping[str, Any]:
        """Return the feature's part of an instance's description, as plain JSON types."""
        return {}

    def families(self) -> Iterable[Metric]:
        """Return the metrics of its state as of now."""
        return ()

    def add_routes(self, app: FastAPI, read: list[Any], write: list[Any]) -> None:
        """Add its endpoints to the admin API, behind the dependencies that check a caller's right."""
