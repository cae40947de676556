"""The interface between a feature and the composition root: what a feature is built from, and what it provides.

A feature is one folder of `router/features`. Its module `feature` has a subclass of `Feature`, which the
composition root imports, and builds from the `Core`, only if the feature is configured.
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
"""Reads a changed body in the same way as the request's own body was read."""

ResolveName = Callable[[Prompt, bytes, Tenant | None, ReadBody], Awaitable[Prompt]]
"""Returns the prompt for the model that the prompt's model name stands for; the bytes are the prompt's body."""


class Feature:
    """A capability beside the core. Methods that a feature does not override do nothing."""

    path: FeaturePath = FeaturePath()
    shared: Sequence[SharedPart] = ()  # state on which processes agree; empty if there is only one process
    listener: Listener | None = None  # accepts connections at the process on duty
    resolve_name: ResolveName | None = None  # None: the feature gives models no other names

    def start(self) -> None:
        """Start what runs in every process. The listeners are bound, and accept no connections yet."""

    def take_duties(self) -> None:
        """Start what only one process of a host does; from now on this process does it. Raises `ConfigError`."""

    async def leave_duties(self) -> None:
        """End what `take_duties` has started: another process of the host has the duties from now on."""

    async def close(self) -> None:
        """End all that was started, and write what is left. All requests have ended."""

    def on_drain(self, instance: str, on: bool) -> bool:
        """Handle that an instance is to be drained, or (not `on`) no longer. Return whether the drain waits for
        this feature.
        """
        return False

    def describe(self) -> Any:
        """Return the feature's state for the admin API, as plain JSON types; None if it has none to show."""

    def describe_instance(self, instance: str) -> Mapping[str, Any]:
        """Return the feature's part of an instance's description, as plain JSON types."""
        return {}

    def families(self) -> Iterable[Metric]:
        """Return the metrics of the feature's state as of now."""
        return ()

    def add_routes(self, app: FastAPI, read: list[Any], write: list[Any]) -> None:
        """Add the feature's endpoints to the admin API, behind the dependencies that check a caller's right."""
