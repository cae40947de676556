"""A real Envoy for a test: `async with Envoy.run(configuration, folder, guard) as running`.

The configuration is YAML as Envoy reads it, without `admin`, which is given here. Listeners that bind port 0 get a port
from the system, found as `running.ports[NAME]`. Envoy answers when the block begins, which does not mean that it has
found the hosts of its clusters healthy: `running.until_healthy(CLUSTER)` waits for that.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import httpx

from router.lab.local_stack.guard import ProcessGuard
from tests.gateway.install import program
from tests.stack.children import Child

START_S = 30.0
ADMIN = "admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}"
NUMBERS = itertools.count()


class Envoy:
    """A running Envoy."""

    def __init__(self, child: Child, admin: httpx.AsyncClient, ports: dict[str, int]) -> None:
        self._child = child
        self.admin = admin  # /stats, /clusters, /config_dump, ...
        self.ports = ports  # by name of the listener

    @classmethod
    @asynccontextmanager
    async def run(cls, configuration: str, folder: Path, guard: ProcessGuard) -> AsyncIterator[Self]:
        """Start it with one worker thread, wait until it is ready, end it. Fails with the end of its log, a file in
        `folder`, when it ends instead.
        """
        name = f"envoy-{next(NUMBERS)}"
        file, address = folder / f"{name}.yaml", folder / f"{name}.admin"
        file.write_text(configuration)
        command = [
            *(str(program("envoy")), "-c", str(file), "--config-yaml", ADMIN, "--admin-address-path", str(address)),
            *("--concurrency", "1", "--disable-hot-restart", "--log-level", "warning"),
        ]
        child = Child(name, command, folder, guard=guard)
        child.start()
        try:
            await asyncio.to_thread(child.wait, lambda: address.is_file() and address.read_text(), START_S)
            async with httpx.AsyncClient(base_url=f"http://{address.read_text()}", trust_env=False) as admin:
                await asyncio.to_thread(child.wait, lambda: _is_live(str(admin.base_url)), START_S)
                listeners = (await admin.get("/listeners", params={"format": "json"})).raise_for_status().json()
                yield cls(child, admin, _read_ports(listeners))
        finally:
            child.kill()

    @property
    def pid(self) -> int:
        return self._child.pid

    def stop(self) -> None:
        """Send SIGTERM, at which it ends without waiting for open requests."""
        self._child.stop()

    def url(self, listener: str) -> str:
        return f"http://127.0.0.1:{self.ports[listener]}"

    @property
    def log(self) -> str:
        """What it wrote so far."""
        return self._child.log.read_text(errors="replace")

    async def stat(self, name: str) -> float:
        """Return a counter or gauge by its full name; 0 for one that was never counted."""
        answer = await self.admin.get("/stats", params={"filter": f"^{name}$", "format": "json"})
        found = answer.raise_for_status().json()["stats"]
        return float(next((stat["value"] for stat in found if stat.get("name") == name), 0.0))

    async def until_healthy(self, cluster: str, deadline_s: float = START_S) -> None:
        """Wait until a host of the cluster is healthy by Envoy's health checks."""
        async with asyncio.timeout(deadline_s):
            while not await self._is_healthy(cluster):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def _is_healthy(self, cluster: str) -> bool:
        return await self.stat(f"cluster.{cluster}.membership_healthy") > 0


def _is_live(admin_url: str) -> bool:
    return httpx.get(f"{admin_url}/ready", trust_env=False).text == "LIVE\n"


def _read_ports(listeners: dict[str, Any]) -> dict[str, int]:
    return {
        status["name"]: int(status["local_address"]["socket_address"]["port_value"])
        for status in listeners.get("listener_statuses", [])
    }
