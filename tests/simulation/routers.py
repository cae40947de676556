"""A simulated router: the product's whole process, built as in production, on the in-memory network."""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any

from router.app import App
from router.config import schema
from router.proxy.listening_sockets import ListeningSockets
from tests.simulation.loop import LoopClock
from tests.simulation.network import HOST, Network

PORT, ADMIN_PORT = 9000, 9001


class SimulatedSockets(ListeningSockets):
    """Listening sockets of a host, on the in-memory network."""

    def __init__(self, network: Network, host: str) -> None:
        super().__init__()
        self._network = network
        self._host = host

    async def open(self, host: str, port: int, copies: int = 1) -> list[list[Any]]:
        return [[self._network.listen(self._host, port)]]


class SimulatedRouter:
    """One router on a host of its own. `app` is None while it is down."""

    def __init__(self, network: Network, name: str, config: dict[str, Any]) -> None:
        self._network = network
        self.name = name
        own = {"listen": {"host": name, "port": PORT}, "admin": {"port": ADMIN_PORT}}
        self._config = schema.Config.model_validate(config | own)
        self.clock = LoopClock(network.loop)
        self.app: App | None = None

    async def start(self) -> None:
        """Start the process."""
        await self._on_host(self._start())

    async def stop(self) -> None:
        """Stop the process as SIGTERM does."""
        assert self.app is not None
        app, self.app = self.app, None
        await self._on_host(app.stop())

    async def _start(self) -> None:
        self.app = App(self._config, self.clock, sockets=SimulatedSockets(self._network, self.name))
        await self.app.start()

    async def _on_host(self, work: Any) -> Any:
        context = copy_context()
        context.run(HOST.set, self.name)
        return await asyncio.get_running_loop().create_task(work, context=context)
