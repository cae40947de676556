"""The embedded fleet: emulated engines as child processes, started together, restarted, and ended with their
parent.

An engine that dies is restarted on the same ports, after a pause that grows each time it soon dies again. To the
router, killing an engine of the embedded fleet looks like a pod that crashes and restarts.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import msgspec

from router.errors import WarmrouteError
from router.lab.child_process import ChildProcess
from router.lab.emulator.options import EngineOptions
from router.tasks import Tasks

log = logging.getLogger("warmroute.fleet")

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 2.0
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0
STABLE_S = 30.0  # an engine that ran this long did not end because of its start


class EngineNotStarted(WarmrouteError):
    """An engine ended or stayed silent before its announcement; the reason is on standard error."""


class EmulatedEngine(NamedTuple):
    name: str
    url: str
    pid: int
    bootstrap_url: str | None = None  # of a prefill engine with a transfer


class _Engine:
    """One engine process and its latest announcement."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = msgspec.structs.replace(options, parent_pid=os.getpid())
        self.announcement: dict[str, Any] = {}
        self._process: ChildProcess | None = None

    async def start(self) -> None:
        """Start the engine and wait until it accepts requests. Raises EngineNotStarted."""
        options = msgspec.json.encode(self.options).decode()
        self._process = await ChildProcess.start("router.lab.emulator.server", options)
        announcement = await self._process.read_announcement(START_TIMEOUT_S)
        if announcement is None:
            await self.stop()
            raise EngineNotStarted(f"engine {self.options.name} did not start")
        self.announcement = announcement
        self.options = _pin_ports(self.options, announcement)

    async def wait(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        if self._process is not None:
            await self._process.stop(STOP_TIMEOUT_S)


class EmbeddedFleet:
    """Fleet that runs its engines while entered. Entering raises EngineNotStarted, with no engine left running."""

    def __init__(self, engines: Sequence[EngineOptions]) -> None:
        self._engines = [_Engine(options) for options in engines]
        self._tasks = Tasks("embedded fleet")

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        for engine in self._engines:
            self._tasks.spawn(f"restart {engine.options.name}", _keep_running(engine))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.close()
        await self._stop()

    @property
    def members(self) -> list[EmulatedEngine]:
        """Engines as last announced. Between a death and the restart, `pid` is that of the dead process."""
        facts = [engine.announcement for engine in self._engines]
        return [EmulatedEngine(fact["name"], fact["url"], fact["pid"], fact["bootstrap_url"]) for fact in facts]

    async def _start(self) -> None:
        """Start all engines concurrently; the first failure ends the wait for the others."""
        try:
            async with asyncio.TaskGroup() as starting:
                for engine in self._engines:
                    starting.create_task(engine.start(), name=f"start {engine.options.name}")
        except* EngineNotStarted as failed:
            raise failed.exceptions[0] from None

    async def _stop(self) -> None:
        await asyncio.gather(*(engine.stop() for engine in self._engines))


async def _keep_running(engine: _Engine) -> None:
    """Restart the engine whenever it ends, until cancelled."""
    now_s, pause_s = asyncio.get_running_loop().time, FIRST_PAUSE_S
    while True:
        began_s = now_s()
        status = await engine.wait()
        if now_s() - began_s > STABLE_S:
            pause_s = FIRST_PAUSE_S
        log.warning("engine %s: ended with status %s; restarting in %.2f s", engine.options.name, status, pause_s)
        await asyncio.sleep(pause_s)
        try:
            await engine.start()
        except EngineNotStarted as failure:
            log.warning("%s", failure)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def _pin_ports(options: EngineOptions, announcement: dict[str, Any]) -> EngineOptions:
    """Return the options with the announced ports; with several ranks, event ports stay as configured."""
    pinned = msgspec.structs.replace(options, port=_port(announcement["url"]))
    if announcement["bootstrap_url"] is not None:
        pinned = msgspec.structs.replace(pinned, bootstrap_port=_port(announcement["bootstrap_url"]))
    if options.ranks == 1 and (source := announcement["events"].get("0")) is not None:
        pinned = msgspec.structs.replace(pinned, events_port=_port(source["endpoint"]))
        if source["replay_endpoint"] is not None:
            pinned = msgspec.structs.replace(pinned, replay_port=_port(source["replay_endpoint"]))
    return pinned


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
