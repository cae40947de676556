"""The embedded fleet: emulated engines as child processes, started together, kept alive, and gone with their parent.

A child that dies is started again on the ports that it had, after a pause that grows from death to death, so that
killing an engine in the embedded fleet looks to the router like a pod that crashes and comes back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self

import msgspec

from router.errors import WarmrouteError
from router.tasks import Tasks
from router.testbed.emulator.options import EngineOptions

log = logging.getLogger("warmroute.fleet")

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 2.0
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 8.0


class EngineNotStarted(WarmrouteError):
    """An engine ended, or stayed silent, before it announced itself. It has told why on standard error."""


class EmulatedEngine(NamedTuple):
    name: str
    url: str
    pid: int
    bootstrap_url: str | None = None  # of a prefill engine with a transfer


class _Child:
    """One engine process and what it announced last."""

    def __init__(self, options: EngineOptions) -> None:
        self.options = msgspec.structs.replace(options, parent_pid=os.getpid())
        self.announced: dict[str, Any] = {}
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Returns when it takes requests. Raises NotStarted."""
        self._process = process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router.testbed.emulator", msgspec.json.encode(self.options).decode()),
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C at the terminal is for the parent, which then ends its children
            stdout=asyncio.subprocess.PIPE,
        )
        assert process.stdout is not None
        try:
            line = await asyncio.wait_for(process.stdout.readline(), START_TIMEOUT_S)
        except TimeoutError:
            line = b""
        if not line:
            await self.stop()
            raise EngineNotStarted(f"engine {self.options.name} did not start")
        self.announced = msgspec.json.decode(line)
        self.options = _pin_ports(self.options, self.announced)

    async def ended(self) -> int:
        assert self._process is not None
        return await self._process.wait()

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL for one that does not listen."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            await process.wait()


class EmbeddedFleet:
    """Engines run between enter and exit. Raises NotStarted on enter, with none left running."""

    def __init__(self, engines: Sequence[EngineOptions]) -> None:
        self._children = [_Child(options) for options in engines]
        self._tasks = Tasks("embedded fleet")

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stop()
            raise
        for child in self._children:
            self._tasks.spawn(f"keep {child.options.name}", _keep_running(child))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tasks.close()
        await self._stop()

    @property
    def members(self) -> list[EmulatedEngine]:
        """As announced last; between a death and the new start it is the dead one's pid."""
        facts = [child.announced for child in self._children]
        return [EmulatedEngine(fact["name"], fact["url"], fact["pid"], fact["bootstrap_url"]) for fact in facts]

    async def _start(self) -> None:
        """All at the same time; the first that fails ends the waiting for the others."""
        try:
            async with asyncio.TaskGroup() as starting:
                for child in self._children:
                    starting.create_task(child.start(), name=f"start {child.options.name}")
        except* EngineNotStarted as failed:
            raise failed.exceptions[0] from None

    async def _stop(self) -> None:
        await asyncio.gather(*(child.stop() for child in self._children))


async def _keep_running(child: _Child) -> None:
    """Start it again whenever it ends, for ever."""
    pause_s = FIRST_PAUSE_S
    while True:
        status = await child.ended()
        log.warning("engine %s ended with status %s; starting it again in %.2f s", child.options.name, status, pause_s)
        await asyncio.sleep(pause_s)
        try:
            await child.start()
        except EngineNotStarted as why:
            log.warning("%s", why)
        pause_s = min(pause_s * 2, LONGEST_PAUSE_S)


def _pin_ports(options: EngineOptions, announced: dict[str, Any]) -> EngineOptions:
    """The same engine on the ports it has now. Event ports of several ranks stay the system's choice unless given."""
    pinned = msgspec.structs.replace(options, port=_port(announced["url"]))
    if announced["bootstrap_url"] is not None:
        pinned = msgspec.structs.replace(pinned, bootstrap_port=_port(announced["bootstrap_url"]))
    if options.ranks == 1 and options.events:
        source = announced["events"]["0"]
        pinned = msgspec.structs.replace(
            pinned, events_port=_port(source["endpoint"]), replay_port=_port(source["replay_endpoint"])
        )
    return pinned


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])
