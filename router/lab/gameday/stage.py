"""The stage of a game day: simulated engines, a pool and the routers as processes, and relays between them.

Everything listens on ports of its own on the loopback interface. Nothing outlives the `Stage`: engines, pool and
routers die with the process that started them, however that process ends (Linux), even if they are stopped
(SIGSTOP).

Several routers are replicas of each other. A relay in front of them spreads connections.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import secrets
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from router.config.sections.gameday import GamedayFile
from router.errors import WarmrouteError
from router.lab.child_process import ChildProcess
from router.lab.emulator.options import EngineOptions
from router.lab.emulator.supervisor import EmbeddedFleet, EmulatedEngine
from router.lab.emulator.vocabulary import DATA
from router.lab.gameday.clients import LoadEndpoint
from router.lab.gameday.relay import TcpRelay
from router.lab.gameday.routers import START_TIMEOUT_S, STOP_TIMEOUT_S, StageNotReady, StageRouter
from router.lab.local_stack.preflight import free_ports

MODEL = "warm-tiny"
MASTER_MODULE = "router.lab.emulator.mooncake_master"
POLL_S = 0.05
SECRET_ENV = "WARMROUTE_GAMEDAY_SECRET"  # environment variable with the secret of the replicas


class Stage:
    """Runs while entered; entering raises StageNotReady or EngineNotStarted. The routers' files go to `folder`."""

    def __init__(self, script: GamedayFile, folder: Path) -> None:
        self.script = script
        self.folder = folder.resolve()  # paths in a configuration are relative to its file
        self.relays: dict[int, list[TcpRelay]] = {}  # by number of the engine
        self.http = httpx.AsyncClient(timeout=5.0, trust_env=False)
        self._fleet: EmbeddedFleet
        self._master: ChildProcess | None = None
        self._master_url: str | None = None
        self.routers: list[StageRouter] = []
        self._url = ""  # to which clients connect
        self._stopped: set[int] = set()  # processes that are frozen
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as opening:
            await opening.enter_async_context(self.http)
            opening.callback(self.continue_engines)
            if self.script.fleet.pool:
                opening.push_async_callback(self.stop_pool)
                await self.start_pool()
            engines = [self._engine_options(number) for number in range(self.script.fleet.engines)]
            self._fleet = await opening.enter_async_context(EmbeddedFleet(engines))
            await self._start_routers(opening)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def endpoint(self) -> LoadEndpoint:
        return LoadEndpoint(self._url, MODEL, tuple(_key(name) for name in self._tenants) or (None,))

    @property
    def engines(self) -> list[EmulatedEngine]:
        """All engines as they are now."""
        return self._fleet.members

    def engine(self, number: int) -> EmulatedEngine:
        """Return an engine as it is now: it has another pid after each restart."""
        return self._fleet.members[number]

    async def wait_until_ready(self) -> None:
        """Return when every engine is ready at every router. Raises StageNotReady if that takes too long."""
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while await self._count_ready() < self.script.fleet.engines:  # noqa: ASYNC110  another process's state
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise StageNotReady(f"not every engine became ready; the routers' logs: {self.folder}") from None

    # what faults do

    def kill_engine(self, number: int) -> None:
        """Kill an engine's process; the fleet's supervisor starts it again on the same ports."""
        with suppress(ProcessLookupError):
            os.kill(self.engine(number).pid, signal.SIGKILL)

    def freeze_engine(self, number: int) -> None:
        pid = self.engine(number).pid
        os.kill(pid, signal.SIGSTOP)
        self._stopped.add(pid)

    def continue_engines(self) -> None:
        """Let every frozen engine run on."""
        while self._stopped:
            with suppress(ProcessLookupError):
                os.kill(self._stopped.pop(), signal.SIGCONT)

    async def set_engine_faults(self, number: int, **faults: object) -> None:
        """Change faults of an engine (`EngineFaults`). It does nothing to an engine that is being restarted."""
        with suppress(httpx.HTTPError):
            await self.http.post(f"{self.engine(number).url}/emulate/faults", json=faults)

    async def clear_cache(self, number: int) -> None:
        """Let an engine drop its cache, which it does only while it has no requests."""
        with suppress(httpx.HTTPError):
            await self.http.post(f"{self.engine(number).url}/reset_prefix_cache")

    async def start_pool(self) -> None:
        """Start the pool's master, empty, on the port that it had. Raises StageNotReady."""
        port = 0 if self._master_url is None else int(self._master_url.rpartition(":")[2])
        options = json.dumps({"port": port, "parent_pid": os.getpid()})
        self._master = await ChildProcess.start(MASTER_MODULE, options)
        announcement = await self._master.read_announcement(START_TIMEOUT_S)
        if announcement is None:
            raise StageNotReady("the pool's master did not start")
        self._master_url = announcement["url"]

    async def stop_pool(self) -> None:
        if self._master is not None:
            await self._master.stop(STOP_TIMEOUT_S)

    async def activate(self, policy: str) -> None:
        """Switch to another policy at the first router, as an operator does. Raises WarmrouteError when it refuses."""
        await self._switch("activate", {"policy": policy})

    async def undo(self) -> None:
        """Undo the last switch at the first router. Raises WarmrouteError when it refuses."""
        await self._switch("undo", None)

    async def _switch(self, action: str, body: Mapping[str, str] | None) -> None:
        answer = await self.http.post(f"{self.routers[0].admin_url}/admin/{action}", json=body)
        if answer.status_code != 200:
            raise WarmrouteError(f"the router refuses to {action}: {answer.text[:300]}")

    # starting and stopping

    @property
    def _tenants(self) -> list[str]:
        return [f"tenant-{number}" for number in range(self.script.load.tenants)]

    def _engine_options(self, number: int) -> EngineOptions:
        fleet = self.script.fleet
        return EngineOptions(
            name=f"engine-{number}",
            model=MODEL,
            blocks=fleet.blocks,
            prefill_tokens_per_s=fleet.prefill_tokens_per_s,
            decode_ms_per_token=fleet.decode_ms_per_token,
            pool_url=self._master_url,
            seed=self.script.seed * 1000 + number,
        )

    async def _start_routers(self, opening: AsyncExitStack) -> None:
        """Start all routers concurrently, then the relay in front of several, and wait for the engines."""
        number = self.script.fleet.routers
        ports = free_ports(3 * number)
        peers = [f"127.0.0.1:{port}" for port in ports[2::3]]
        shared = await self._shared_config(opening)
        env = {SECRET_ENV: secrets.token_hex(32)}
        for each in range(number):
            name, listen, admin, replica = f"router-{each}", *ports[3 * each : 3 * each + 3]
            config = shared | self._own_config(name, listen, admin)
            if number > 1:
                own = {"host": "127.0.0.1", "port": replica}
                config["replicas"] = {"peers": peers, "secret_env": SECRET_ENV} | own
            router = StageRouter(name, self.folder / name, config, env)
            opening.push_async_callback(router.close)
            self.routers.append(router)
        await asyncio.gather(*(router.start() for router in self.routers))
        self._url = self.routers[0].url
        if number > 1:
            relay = await opening.enter_async_context(TcpRelay("127.0.0.1", *ports[::3]))
            self._url = f"http://127.0.0.1:{relay.port}"
        await self.wait_until_ready()

    async def _count_ready(self) -> int:
        """Return how many engines are ready at every router."""
        ready = list[int]()
        for router in self.routers:
            answer = await self.http.get(f"{router.admin_url}/admin/instances")
            ready.append(sum(one["state"] == "ready" for one in answer.json()["instances"]))
        return min(ready)

    async def _shared_config(self, opening: AsyncExitStack) -> dict[str, Any]:
        """Return the part of the configuration that all routers have."""
        script = self.script
        config: dict[str, Any] = {
            "fleet": {"instances": [await self._instance(number, opening) for number in range(script.fleet.engines)]},
            "tokenizers": {MODEL: {"path": str(DATA)}},
            "active": script.policy,
            "seed": script.seed,
        }
        if self._master_url is not None:
            config["pool"] = {"masters": [self._master_url]}
        if self._tenants:
            lines = [f"{hashlib.sha256(_key(name).encode()).hexdigest()} {name}\n" for name in self._tenants]
            (self.folder / "keys").write_text("".join(lines), encoding="ascii")
            config["clients"] = {"keys_file": str(self.folder / "keys")}
        return config | {name: _merge(config.get(name), section) for name, section in script.router.items()}

    def _own_config(self, name: str, listen: int, admin: int) -> dict[str, Any]:
        """Return the part of the configuration that a router has for itself."""
        folder = self.folder / name
        own = {
            "listen": {"host": "127.0.0.1", "port": listen},
            "admin": {"port": admin, "audit_file": str(folder / "audit.jsonl")},
            "records": {"decision_log": {"folder": str(folder / "decisions")}},
        }
        return {part: _merge(section, self.script.router.get(part, {})) for part, section in own.items()}

    async def _instance(self, number: int, opening: AsyncExitStack) -> dict[str, Any]:
        """Return an engine's entry in the router's configuration: behind relays if a fault cuts the engine off."""
        engine = self.engine(number)
        instance: dict[str, Any] = {"name": engine.name, "url": engine.url}
        if not any(fault.fault == "partition" and fault.engine == number for fault in self.script.faults):
            return instance
        (source,) = (await self.http.get(f"{engine.url}/kv_event_sources")).json().values()
        urls = engine.url, source["endpoint"], source["replay_endpoint"]
        relays = [TcpRelay("127.0.0.1", int(urlsplit(url).port or 0)) for url in urls]
        self.relays[number] = [await opening.enter_async_context(relay) for relay in relays]
        http, live, replay = (f"127.0.0.1:{relay.port}" for relay in self.relays[number])
        events = {"rank": 0, "endpoint": f"tcp://{live}", "replay_endpoint": f"tcp://{replay}"}
        return instance | {"url": f"http://{http}", "kv_events": [events]}


def _merge(section: object, over: object) -> object:
    """Return a section with the keys of another one over it."""
    return section | over if isinstance(section, dict) and isinstance(over, dict) else over


def _key(tenant: str) -> str:
    """Return the API key of a tenant."""
    return f"key-of-{tenant}"
