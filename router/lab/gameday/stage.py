"""The stage of a game day: simulated engines, a pool and the router as processes, and relays between router and
engines.

Everything listens on ports of its own on the loopback interface. Nothing outlives the `Stage`: engines, pool and
router die with the process that started them, however that process ends (Linux), even if they are stopped
(SIGSTOP).

The router is `python -m router.cli.gameday.router`, which is the router with a wall clock that can be made to jump.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import IO, Any, Self
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

MODEL = "warm-tiny"
ROUTER_MODULE, MASTER_MODULE = "router.cli.gameday.router", "router.lab.emulator.mooncake_master"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
POLL_S = 0.05
CLOCK_FILE = "clock"  # in the router's folder: seconds by which its wall clock is wrong, read on SIGUSR1


class StageNotReady(WarmrouteError):
    """A process did not start; its own messages are on standard error or in the log that the message names."""


class Stage:
    """Runs while entered; entering raises StageNotReady or EngineNotStarted. The router's files go to `folder`."""

    def __init__(self, script: GamedayFile, folder: Path) -> None:
        self.script = script
        self.folder = folder
        self.relays: dict[int, list[TcpRelay]] = {}  # by number of the engine
        self.http = httpx.AsyncClient(timeout=5.0, trust_env=False)
        self._fleet: EmbeddedFleet
        self._master: ChildProcess | None = None
        self._master_url: str | None = None
        self._router: ChildProcess | None = None
        self._announcement: dict[str, Any] = {}
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
            opening.push_async_callback(self._stop_router)
            await self._start_router(opening)
            self._open = opening.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def endpoint(self) -> LoadEndpoint:
        return LoadEndpoint(self._announcement["url"], MODEL)

    @property
    def admin_url(self) -> str:
        return str(self._announcement["admin_url"])

    def engine(self, number: int) -> EmulatedEngine:
        """Return an engine as it is now: it has another pid after each restart."""
        return self._fleet.members[number]

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

    def fill_disk(self) -> None:
        """Make every write of the router fail that would make a file longer (EFBIG), as on a full disk."""
        resource.prlimit(self._announcement["pid"], resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def free_disk(self) -> None:
        unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
        resource.prlimit(self._announcement["pid"], resource.RLIMIT_FSIZE, unlimited)

    def set_router_clock(self, offset_s: float) -> None:
        """Make the router's wall clock wrong by `offset_s`."""
        (self.folder / CLOCK_FILE).write_text(str(offset_s), encoding="utf-8")
        os.kill(self._announcement["pid"], signal.SIGUSR1)

    async def activate(self, policy: str) -> None:
        """Switch the router to another policy, as an operator does. Raises WarmrouteError when it refuses."""
        await self._switch("activate", {"policy": policy})

    async def undo(self) -> None:
        """Undo the last switch. Raises WarmrouteError when the router refuses."""
        await self._switch("undo", None)

    async def _switch(self, action: str, body: Mapping[str, str] | None) -> None:
        answer = await self.http.post(f"{self.admin_url}/admin/{action}", json=body)
        if answer.status_code != 200:
            raise WarmrouteError(f"the router refuses to {action}: {answer.text[:300]}")

    # starting and stopping

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

    async def _start_router(self, opening: AsyncExitStack) -> None:
        file = self.folder / "router.yaml"
        config = await self._router_config(opening)
        file.write_text(json.dumps(config, indent=1), encoding="utf-8")  # JSON is YAML
        log = opening.enter_context((self.folder / "router.log").open("wb"))
        read, write = os.pipe()  # not the file itself, to which the router could not write while its disk is full
        with os.fdopen(write, "wb") as stderr:
            self._router = await ChildProcess.start(ROUTER_MODULE, str(file), str(os.getpid()), stderr=stderr)
        asyncio.get_running_loop().add_reader(read, _copy, read, log)
        opening.callback(_close_pipe, read)
        announcement = await self._router.read_announcement(START_TIMEOUT_S)
        if announcement is None:
            raise StageNotReady(f"the router did not start; its log: {self.folder / 'router.log'}")
        self._announcement = announcement
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while await self._count_ready() < self.script.fleet.engines:  # noqa: ASYNC110  another process's state
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise StageNotReady(
                f"not every engine became ready; the router's log: {self.folder / 'router.log'}"
            ) from None

    async def _count_ready(self) -> int:
        answer = await self.http.get(f"{self.admin_url}/admin/instances")
        return sum(one["state"] == "ready" for one in answer.json()["instances"])

    async def _stop_router(self) -> None:
        if self._router is not None:
            await self._router.stop(STOP_TIMEOUT_S)

    async def _router_config(self, opening: AsyncExitStack) -> dict[str, Any]:
        script = self.script
        config: dict[str, Any] = {
            "listen": {"host": "127.0.0.1", "port": 0},
            "admin": {"port": 0, "audit_file": str(self.folder / "audit.jsonl")},
            "fleet": {"instances": [await self._instance(number, opening) for number in range(script.fleet.engines)]},
            "tokenizers": {MODEL: {"path": str(DATA)}},
            "records": {"decision_log": {"folder": str(self.folder / "decisions")}},
            "active": script.policy,
            "seed": script.seed,
        }
        if self._master_url is not None:
            config["pool"] = {"masters": [self._master_url]}
        for name, section in script.router.items():
            both = isinstance(section, dict) and isinstance(config.get(name), dict)
            config[name] = config[name] | section if both else section
        return config

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


def _copy(pipe: int, log: IO[bytes]) -> None:
    """Copy what is in the pipe to the log; at the pipe's end, stop reading."""
    if data := os.read(pipe, 65536):
        log.write(data)
        log.flush()
    else:
        asyncio.get_running_loop().remove_reader(pipe)


def _close_pipe(pipe: int) -> None:
    asyncio.get_running_loop().remove_reader(pipe)
    os.close(pipe)
