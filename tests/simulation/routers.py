"""A simulated router: the product's whole process, built as in production, on the in-memory network."""

from __future__ import annotations

import math
from typing import Any

from router.app import App
from router.config import schema
from router.proxy.listening_sockets import ListeningSockets
from tests.simulation.loop import LoopClock
from tests.simulation.network import CLIENTS, Network, run_on_host

PORT, ADMIN_PORT = 9000, 9001


class SimulatedSockets(ListeningSockets):
    """Listening sockets of a host, on the in-memory network."""

    def __init__(self, network: Network, host: str) -> None:
        super().__init__()
        self._network = network
        self._host = host

    async def open(self, host: str, port: int, copies: int = 1) -> list[list[Any]]:
        return [[self._network.listen(self._host, port)]]


class RouterHost:
    """One router on a host of its own. `app` is None while it is down; `lives` are all processes so far."""

    def __init__(self, network: Network, name: str, config: dict[str, Any]) -> None:
        self._network = network
        self.name = name
        listen = {"host": name, "port": PORT, "trusted_proxies": [CLIENTS]}
        own = {"listen": listen, "admin": {"port": ADMIN_PORT}}
        self._config = schema.Config.model_validate(config | own)
        self.clock = LoopClock(network.loop)
        self.app: App | None = None
        self.lives: list[App] = []
        self._down_since_s: float | None = network.loop.time()
        self._down: list[tuple[float, float]] = []

    def was_down(self, since_s: float, until_s: float) -> bool:
        """Return whether the router was stopping or down at any time of this interval."""
        down = [*self._down, *([] if self._down_since_s is None else [(self._down_since_s, math.inf)])]
        return any(begin <= until_s and since_s <= end for begin, end in down)

    async def start(self) -> None:
        """Start the process."""
        self._network.boot(self.name)
        await run_on_host(self.name, self._start())
        assert self._down_since_s is not None
        self._down.append((self._down_since_s, self._network.loop.time()))
        self._down_since_s = None

    async def stop(self) -> None:
        """Stop the process as SIGTERM does."""
        assert self.app is not None
        self._down_since_s = self._network.loop.time()
        app, self.app = self.app, None
        await run_on_host(self.name, app.stop())

    async def crash(self, *, silently: bool) -> None:
        """End the process at once; `silently`: its host loses its power. What it does to end cleanly reaches nobody."""
        self._network.crash(self.name, silently=silently)
        await self.stop()

    async def drain(self, url: str, on: bool) -> None:
        """Drain the engine at `url`, or end that, as an operator does."""
        assert self.app is not None
        status, (id,) = self.app.status, [one.id for one in self.app.core.scheduler.fleet if one.config.url == url]

        async def drain() -> None:
            assert status.drain(id, on)

        await run_on_host(self.name, drain())

    async def activate(self, policy: str) -> None:
        """Switch to the policy, as an operator does."""
        assert self.app is not None
        await run_on_host(self.name, self.app.core.control.activate(policy, "operator"))

    async def _start(self) -> None:
        app = App(self._config, self.clock, sockets=SimulatedSockets(self._network, self.name))
        self.lives.append(app)
        await app.start()
        self.app = app
