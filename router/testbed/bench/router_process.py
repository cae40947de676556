"""A router in front of a site's engines, for the time of one arm: `warmroute serve` as a child process.

A process of its own, as in production: the load client's work and the router's do not delay each other, and what an
earlier arm's router had learnt is gone.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx

from router.clock import Clock
from router.config.reader import dump_yaml, load_policies
from router.config.schema import Config
from router.errors import ConfigError, WarmrouteError
from router.testbed.bench.engine_counters import poll_until

HOST = "127.0.0.1"
READY_S = 30.0
STOP_S = 10.0


class RouterNotStarted(WarmrouteError):
    """The router ended, or was not ready in time."""


@asynccontextmanager
async def run_router(front: Config, policy: str, log: Path, clock: Clock) -> AsyncIterator[str]:
    """Its base URL, once it can send to all its engines. Its configuration is left beside its log.

    Raises ConfigError for an unknown policy, NotStarted.
    """
    port, admin = _free_ports(2)
    config = log.with_suffix(".yaml")
    _write(config, _configuration(front, policy, port, admin))
    with log.open("wb") as told:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router", "serve", "--config", str(config)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=told,
            stderr=told,
            start_new_session=True,  # a Ctrl-C at the terminal is for us, who then end it
        )
    try:
        async with httpx.AsyncClient(base_url=f"http://{HOST}:{admin}", timeout=2.0, trust_env=False) as http:
            ready = await poll_until(
                clock, READY_S, lambda: is_ready(http), lambda ready: ready or process.returncode is not None
            )
        if not ready:
            raise RouterNotStarted(
                f"the router with policy {policy} is not ready: {_last_line(log)} (all of it: {log})"
            )
        yield f"http://{HOST}:{port}"
    finally:
        await _end(process)


def _configuration(front: Config, policy: str, port: int, admin_port: int) -> str:
    policies = load_policies(front)
    if policy not in policies:
        raise ConfigError(f"policy {policy!r} is not among {', '.join(sorted(policies))}")
    listen = front.listen.model_copy(update={"host": HOST, "port": port})
    admin = front.admin.model_copy(update={"host": HOST, "port": admin_port, "tokens": []})
    clients = type(front.clients)()  # who may come in is not what is measured
    changed = {"listen": listen, "admin": admin, "clients": clients, "active": policy}
    return dump_yaml(front.model_copy(update=changed), policies)


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


async def is_ready(http: httpx.AsyncClient) -> bool:
    """Whether the router whose admin port `http` asks can send to all engines it was given. It answers there before it
    has read whom it has.
    """
    try:
        answer = await http.get("/admin/instances")
    except httpx.HTTPError:
        return False
    states = {one["state"] for one in answer.json()["instances"]} if answer.status_code == 200 else set()
    return states == {"ready"}


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    process.terminate()
    try:
        await asyncio.wait_for(process.wait(), STOP_S)
    except TimeoutError:
        process.kill()
        await process.wait()


def _last_line(log: Path) -> str:
    return log.read_text(errors="replace").strip().rpartition("\n")[2]


def _free_ports(count: int) -> list[int]:
    """All held at once, so that they differ; another process may still take one before it is used."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [probe.getsockname()[1] for probe in probes]
