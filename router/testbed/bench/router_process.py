"""A router in front of an environment's engines, for the time of one arm: `warmroute serve` as a child process.

It is a process of its own, as in production: the work of the load client and of the router do not delay each other, and
nothing is left of what the router of an earlier arm had learned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx

from router.clock import Clock
from router.config.reader import dump_yaml, load_policies
from router.config.schema import Config
from router.errors import ConfigError, WarmrouteError
from router.testbed.bench.engine_counters import poll_until
from router.testbed.child_process import ChildProcess
from router.testbed.local_stack.preflight import free_ports

HOST = "127.0.0.1"
READY_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 10.0


class RouterNotStarted(WarmrouteError):
    """The router ended, or was not ready in time."""


@asynccontextmanager
async def run_router(config: Config, policy: str, log: Path, clock: Clock) -> AsyncIterator[str]:
    """Yield the base URL of a router that can send to all its engines. Its configuration is written beside its log.

    Raises ConfigError for an unknown policy, RouterNotStarted when it ends or is not ready in time.
    """
    port, admin_port = free_ports(2)
    file = log.with_suffix(".yaml")
    _write_config(file, config, policy, port, admin_port)
    with log.open("wb") as out:
        process = await ChildProcess.start("router", "serve", "--config", str(file), stdout=out, stderr=out)
    try:
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{admin_port}", timeout=2.0, trust_env=False) as http:
            ready = await poll_until(
                clock, READY_TIMEOUT_S, lambda: is_ready(http), lambda ready: ready or process.status is not None
            )
        if not ready:
            raise RouterNotStarted(f"the router with policy {policy} is not ready: {_last_line(log)} (full log: {log})")
        yield f"http://{HOST}:{port}"
    finally:
        await process.stop(STOP_TIMEOUT_S)


async def is_ready(http: httpx.AsyncClient) -> bool:
    """Return whether the router, asked at its admin port, can send to all of its engines.

    That port answers before the router has read which engines there are.
    """
    try:
        answer = await http.get("/admin/instances")
    except httpx.HTTPError:
        return False
    states = {one["state"] for one in answer.json()["instances"]} if answer.status_code == 200 else set()
    return states == {"ready"}


def _last_line(log: Path) -> str:
    return log.read_text(errors="replace").strip().rpartition("\n")[2]


def _write_config(file: Path, config: Config, policy: str, port: int, admin_port: int) -> None:
    policies = load_policies(config)
    if policy not in policies:
        raise ConfigError(f"policy {policy!r} is not among {', '.join(sorted(policies))}")
    listen = config.listen.model_copy(update={"host": HOST, "port": port})
    admin = config.admin.model_copy(update={"host": HOST, "port": admin_port, "tokens": []})
    clients = type(config.clients)()  # authentication is not what is measured
    changes = {"listen": listen, "admin": admin, "clients": clients, "active": policy}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dump_yaml(config.model_copy(update=changes), policies))
