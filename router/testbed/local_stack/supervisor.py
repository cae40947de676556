"""A real stack between enter and exit: Mooncake's master, the client that owns the pool, and vLLM engines over it.

    with RunningStack(settings.stack) as stack:      installed, started, all ready; or StackFailed with one line
        ... stack.engines[0].url, stack.master_url, stack.kill("engine-1"), stack.restart("master")

It blocks, so that tests and coroutines can both have it: who runs an event loop enters before, or calls from a thread.
Nothing outlives it (`guard.py`). It does not know the router: `front.py` puts one in front.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, NoReturn, Self

import httpx

from router.clock import Clock, SystemClock
from router.config.schema import InstanceConfig, TransferProtocol
from router.config.sections.local_stack import LocalStackConfig
from router.errors import WarmrouteError
from router.testbed.local_stack import commands, memory, ports
from router.testbed.local_stack.guard import ProcessGuard
from router.testbed.local_stack.install import find_allocator, stack_models, stack_venv
from router.testbed.local_stack.kv_transfer_config import EngineExtras
from router.testbed.local_stack.process import ChildProcess

LOOK_EVERY_S = 0.1
STOP_S = 10.0

ReportLine = Callable[[str], None]


class StackFailed(WarmrouteError):
    """One line: what did not start or has ended, and where to read more."""


class StackServer(NamedTuple):
    name: str  # "master", "client", "engine-0", "engine-1", ...
    url: str  # an engine's API; the master's HTTP interface
    pid: int
    log: Path


class RunningStack:
    """`extras[i]` is what engine i has beyond the section; port 0 is one that the system chooses.

    `say` gets a line for each step, `waiting` what is waited for. `venv` takes the place of the one of `install.py`.
    """

    def __init__(
        self,
        asked: LocalStackConfig,
        extras: Sequence[EngineExtras] = (),
        report: ReportLine = lambda line: None,
        report_wait: ReportLine = lambda line: None,
        venv: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config, self._engine_ports = ports.choose_ports(asked)
        self._extras = [*extras, *[EngineExtras()] * (asked.engines - len(extras))]
        self._report, self._report_wait, self._venv = report, report_wait, venv
        self._clock = clock or SystemClock()
        self._children: dict[str, ChildProcess] = {}
        self._open = ExitStack()
        self._left_to_die: set[str] = set()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    # what it is

    @property
    def engines(self) -> list[StackServer]:
        return [self.server(name) for name in self._engine_names]

    @property
    def master_url(self) -> str | None:
        """None: there is no store."""
        return commands.master_url(self.config) if self.config.store else None

    @property
    def model(self) -> Path:
        """Folder of the model and its tokenizer."""
        return Path(str(self.config.model))

    def server(self, name: str) -> StackServer:
        child = self._children[name]
        return StackServer(name, child.program.ready.removesuffix("/health"), child.pid, child.log)

    def instances(self) -> list[InstanceConfig]:
        """For `fleet.instances` of a router in front."""
        return [_instance(server, extra) for server, extra in zip(self.engines, self._extras, strict=True)]

    # what can be done to it

    def kill(self, name: str) -> None:
        """As a crash would end it. It stays dead until `start`, and `dead` does not complain."""
        self._left_to_die.add(name)
        self._children[name].kill()

    def start(self, name: str) -> None:
        """Again, on the same ports; `wait` tells when it works."""
        self._children[name].start()
        self._left_to_die.discard(name)

    def wait(self, name: str) -> None:
        """Until it works. Raises StackFailed."""
        self._wait([self._children[name]])

    def describe_failure(self) -> str | None:
        """One line about a child that has ended by itself; None: all run."""
        ended = (c for c in self._children.values() if not c.running() and c.name not in self._left_to_die)
        return next((child.describe_end() for child in ended), None)

    async def wait_for_failure(self) -> NoReturn:
        """For who runs an event loop meanwhile. Raises StackFailed when a child has ended by itself."""
        while (line := self.describe_failure()) is None:  # noqa: ASYNC110  a process is only known to have ended when one looks
            await asyncio.sleep(LOOK_EVERY_S)
        raise StackFailed(line)

    # how it comes and goes

    def _start(self) -> None:
        venv = self._venv or stack_venv(self._report)
        if self.config.model is None:
            self.config = self.config.model_copy(update={"model": str(stack_models(venv, self._report).mid)})
        ports.check_ports(self._ports())
        memory.check_memory(self.config, self.model)
        folder = _logs_folder(self.config)
        self._report(f"starting {self.config.engines} engines{' over a store' * self.config.store}; logs in {folder}")
        guard = ProcessGuard()
        self._open.callback(guard.close)
        http = self._open.enter_context(httpx.Client(timeout=1.0, trust_env=False))
        for program in self._programs(venv, folder):
            self._children[program.name] = child = ChildProcess(program, folder / f"{program.name}.log", guard, http)
            child.start()
            if child.name == commands.MASTER:  # the others do not wait for it
                self._wait([child])
        self._wait(child for child in self._children.values() if child.name != commands.MASTER)

    def _programs(self, venv: Path, folder: Path) -> Iterable[commands.Program]:
        config = None
        if self.config.store:
            config = folder / "mooncake.json"
            config.write_text(json.dumps(commands.mooncake_config(self.config), indent=1))
            yield commands.master(self.config, venv)
            yield commands.client(self.config, venv)
        threads = max(1, len(os.sched_getaffinity(0)) // self.config.engines)
        for name, port, extra in zip(self._engine_names, self._engine_ports, self._extras, strict=True):
            yield commands.engine(
                self.config, commands.EngineProcess(name, port, venv, config, threads, find_allocator()), extra
            )

    @property
    def _engine_names(self) -> list[str]:
        return [f"engine-{i}" for i in range(self.config.engines)]

    def _ports(self) -> dict[str, int]:
        named = zip(self._engine_names, self._engine_ports, strict=True)
        wanted = {f"stack.first_port (this one is of {name})": port for name, port in named}
        if self.config.store:
            mooncake = ("master_port", "master_http_port", "client_port")
            wanted |= {f"stack.{name}": getattr(self.config, name) for name in mooncake}
        return wanted

    def _wait(self, children: Iterable[ChildProcess]) -> None:
        began = self._clock.now()
        left = list(children)
        while left:
            self._report_wait("waiting for " + ", ".join(child.name for child in left))
            for child in left.copy():
                if not child.running():
                    raise StackFailed(child.describe_end())
                if child.works():
                    left.remove(child)
                    self._report(f"  {child.name} works after {self._clock.now() - began:.0f} s (pid {child.pid})")
            if left and self._clock.now() - began > self.config.start_timeout_s:
                slow = left[0]
                raise StackFailed(
                    f"{slow.name} does not work after {self.config.start_timeout_s:g} s (stack.start_timeout_s): "
                    f"{slow.last_error()}; all of it: {slow.log}"
                )
            time.sleep(LOOK_EVERY_S if left else 0)

    def _stop(self) -> None:
        """Engines first: one that has lost its master does not end in time."""
        engines = [child for child in self._children.values() if child.name in self._engine_names]
        others = [child for child in self._children.values() if child.name not in self._engine_names]
        for group in (engines, others):
            self._end(group)
        self._open.close()

    def _end(self, children: Sequence[ChildProcess]) -> None:
        """All at the same time; those that do not listen are killed, and so are workers that were left behind."""
        deadline = self._clock.now() + STOP_S
        for child in children:
            child.terminate()
        for child in children:
            child.wait(max(0.0, deadline - self._clock.now()))
            child.kill()


def _logs_folder(asked: LocalStackConfig) -> Path:
    folder = Path(asked.logs_dir or "stack-logs").resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as trouble:
        raise StackFailed(f"no logs can be written: {trouble}: change stack.logs_dir") from trouble
    return folder


def _instance(server: StackServer, extra: EngineExtras) -> InstanceConfig:
    if extra.role == "both":
        return InstanceConfig(name=server.name, url=server.url)
    transfer = TransferProtocol(protocol="mooncake", bootstrap_url=extra.bootstrap_url)
    return InstanceConfig(name=server.name, url=server.url, role=extra.role, transfer=transfer)
