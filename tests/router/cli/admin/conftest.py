"""A running admin listener on a real socket, in a thread of its own, as a command finds it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from anyio.from_thread import BlockingPortal, start_blocking_portal
from typer.testing import CliRunner

from router.config.sections.listeners import AdminTokenConfig, ListenConfig
from router.control.api.admin import admin_app
from router.proxy.asgi import AsgiHandler
from router.proxy.listener import HttpListener, configure_server
from tests.router.control.api.test_admin import Rooms, Unexplained, still_feed, token
from tests.router.control.control_plane import ControlPlane, crowded_holder


@dataclass
class Running:
    house: ControlPlane
    url: str
    portal: BlockingPortal

    def here(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """On the router's own thread."""
        return self.portal.call(call, *arguments)

    def said(self, commands: typer.Typer, *words: str) -> str:
        """What a command prints. What it raises is raised."""
        result = CliRunner().invoke(commands, [*words, "--admin", self.url], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output


def served(*tokens: AdminTokenConfig) -> Iterator[Running]:
    with start_blocking_portal(backend_options={"use_uvloop": True}) as portal:

        def build() -> tuple[ControlPlane, HttpListener]:
            house = ControlPlane()
            house.decided(crowded_holder(), crowded_holder())
            admin = admin_app(Rooms(), house.control, Unexplained(), still_feed(), tokens)
            return house, HttpListener(configure_server(AsgiHandler(admin), ListenConfig(host="127.0.0.1", port=0)))

        house, listener = portal.call(build)
        portal.call(listener.start)
        try:
            yield Running(house, f"http://127.0.0.1:{listener.port}", portal)
        finally:
            portal.call(listener.stop, 0.1)


@pytest.fixture
def router() -> Iterator[Running]:
    yield from served()


@pytest.fixture
def guarded_router() -> Iterator[Running]:
    yield from served(token("eye", "read"))
