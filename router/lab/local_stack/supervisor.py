"""A real stack while entered: Mooncake's master, the client that owns the pool, and vLLM engines that use it.

    with RunningStack(settings.stack) as stack:      installed, started, all ready; or StackFailed, one line
        ... stack.engines[0].url, stack.master_url, stack.kill("engine-1"), stack.start("engine-1")

`RunningStack` blocks, so that tests and coroutines can both use it: with an event loop, enter it before the loop
runs, or from a thread. No process outlives the stack (`guard.py`). It does not start a router;
`build_router_config` configures one in front of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, NoReturn, Self

import httpx

from router.clock import Clock, SystemClock
from router.config.schema import Config, InstanceConfig, TokenizerSource, TransferProtocol
from router.config.sections.local_stack import LocalStackConfig
from router.config.sections.pool import PoolConfig
from router.errors import WarmrouteError
from router.lab.local_stack import commands
from router.lab.local_stack.commands import EngineExtras
from router.lab.local_stack.guard import ProcessGuard
from router.lab.local_stack.install import find_allocator, stack_models, stack_venv
from router.lab.local_stack.preflight import check_memory, check_ports, choose_ports
from router.lab.local_stack.process import StackProcess

POLL_INTERVAL_S = 0.1
STOP_TIMEOUT_S = 10.0
FIRST_PAUSE_S = 0.5  # before a process that has ended is started again
LONGEST_PAUSE_S = 30.0

ReportLine = Callable[[str], None]


class StackFailed(WarmrouteError):
    """One line: what did not start or has ended, and where to read more."""


class StackServer(NamedTuple):
    name: str  # "master", "client", "engine-0", "engine-1", ...
    url: str  # of an engine's API, or the master's HTTP interface
    pid: int
    log: Path


class RunningStack:
    """A stack that runs while entered. `extras[i]` are engine i's settings beyond the section; for port 0, the
    system chooses a port.

    `report` receives a line for each step, `report_wait` the current wait. `venv` replaces the environment of
    `install.py`.
    """

    def __init__(
        self,
        config: LocalStackConfig,
        extras: Sequence[EngineExtras] = (),
        report: ReportLine = lambda line: None,
        report_wait: ReportLine = lambda line: None,
        venv: Path | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.config, self._engine_ports = choose_ports(config)
        self._extras = [*extras, *[EngineExtras()] * (config.engines - len(extras))]
        self._report, self._report_wait, self._venv = report, report_wait, venv
        self._clock = clock or SystemClock()
        self._processes: dict[str, StackProcess] = {}
        self._open = ExitStack()
        self._killed: set[str] = set()

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    # state

    @property
    def engines(self) -> list[StackServer]:
        return [self.server(name) for name in self._engine_names]

    @property
    def master_url(self) -> str | None:
        """Base URL of the master's HTTP interface. None without a store."""
        return commands.master_url(self.config) if self.config.store else None

    @property
    def model(self) -> Path:
        """Folder of the model and its tokenizer."""
        return Path(str(self.config.model))

    def server(self, name: str) -> StackServer:
        """Return the current process of this name. Raises KeyError through the lookup for an unknown name."""
        process = self._processes[name]
        return StackServer(name, process.program.ready.removesuffix("/health"), process.pid, process.log)

    def instances(self) -> list[InstanceConfig]:
        """Return the engines as `fleet.instances` of a router in front of them."""
        return [_instance_config(server, extra) for server, extra in zip(self.engines, self._extras, strict=True)]

    # control

    def kill(self, name: str) -> None:
        """Kill a process as a crash would. It stays down until `start`, and does not count as a failure."""
        self._killed.add(name)
        self._processes[name].kill()

    def start(self, name: str) -> None:
        """Start a killed process on the same ports; `wait` waits until it is ready."""
        self._processes[name].start()
        self._killed.discard(name)

    def wait(self, name: str) -> None:
        """Wait until a process is ready. Raises StackFailed through the wait if it ends or takes too long."""
        self._wait([self._processes[name]])

    def describe_failure(self) -> str | None:
        """Return one line about a process that has ended by itself. None while all run."""
        return next((process.describe_end() for process in self._find_ended()), None)

    def _find_ended(self) -> list[StackProcess]:
        """Return the processes that have ended by themselves."""
        return [one for one in self._processes.values() if not one.is_running() and one.name not in self._killed]

    async def keep_running(self) -> NoReturn:
        """Start each process that ends by itself again, as a pod is, until cancelled, after a pause that doubles with
        each of its ends.
        """
        pauses_s: dict[str, float] = {}
        due_s: dict[str, float] = {}
        while True:
            for process in self._find_ended():
                name = process.name
                if name not in due_s:
                    pause_s = pauses_s.get(name, FIRST_PAUSE_S)
                    pauses_s[name] = min(LONGEST_PAUSE_S, 2 * pause_s)
                    due_s[name] = self._clock.now() + pause_s
                    self._report(f"{process.describe_end()}; starting it again in {pause_s:g} s")
                elif self._clock.now() >= due_s[name]:
                    del due_s[name]
                    process.kill()  # its workers may have outlived it, and hold its ports
                    process.start()
            await asyncio.sleep(POLL_INTERVAL_S)

    # start and stop

    def _start(self) -> None:
        venv = self._venv or stack_venv(self._report)
        if self.config.model is None:
            self.config = self.config.model_copy(update={"model": str(stack_models(venv, self._report).mid)})
        check_ports(self._ports())
        check_memory(self.config, self.model)
        folder = _make_logs_folder(self.config)
        self._report(f"starting {self.config.engines} engines{' over a store' * self.config.store}; logs in {folder}")
        guard = ProcessGuard()
        self._open.callback(guard.close)
        http = self._open.enter_context(httpx.Client(timeout=1.0, trust_env=False))
        for program in self._programs(venv, folder):
            process = StackProcess(program, folder / f"{program.name}.log", guard, http)
            self._processes[program.name] = process
            process.start()
            if process.name == commands.MASTER:  # the others do not wait for the master
                self._wait([process])
        self._wait(process for process in self._processes.values() if process.name != commands.MASTER)

    def _programs(self, venv: Path, folder: Path) -> Iterable[commands.Program]:
        mooncake = None
        if self.config.store:
            mooncake = folder / "mooncake.json"
            mooncake.write_text(json.dumps(commands.mooncake_config(self.config), indent=1))
            yield commands.master(self.config, venv)
            yield commands.client(self.config, venv)
        threads = max(1, len(os.sched_getaffinity(0)) // self.config.engines)
        for name, port, extra in zip(self._engine_names, self._engine_ports, self._extras, strict=True):
            process = commands.EngineProcess(name, port, venv, mooncake, threads, find_allocator())
            yield commands.engine(self.config, process, extra)

    @property
    def _engine_names(self) -> list[str]:
        return [f"engine-{i}" for i in range(self.config.engines)]

    def _ports(self) -> dict[str, int]:
        engines = zip(self._engine_names, self._engine_ports, strict=True)
        ports = {f"stack.first_port (this one is of {name})": port for name, port in engines}
        if self.config.store:
            mooncake = ("master_port", "master_http_port", "client_port")
            ports |= {f"stack.{name}": getattr(self.config, name) for name in mooncake}
        return ports

    def _wait(self, processes: Iterable[StackProcess]) -> None:
        """Wait until all are ready. A process that hangs is restarted once: vLLM with Mooncake hangs in a few of a
        thousand starts.
        """
        start_s = self._clock.now()
        left = list(processes)
        restarted: set[str] = set()
        while left:
            self._report_wait("waiting for " + ", ".join(process.name for process in left))
            for process in left.copy():
                if not process.is_running():
                    raise StackFailed(process.describe_end())
                if process.is_ready():
                    left.remove(process)
                    took_s = self._clock.now() - start_s
                    self._report(f"  {process.name} is ready after {took_s:.0f} s (pid {process.pid})")
            if left and self._clock.now() - start_s > self.config.start_timeout_s:
                for process in left:
                    hung = self._describe_hang(process)
                    if process.name in restarted:
                        raise StackFailed(hung)
                    self._report(f"  {hung}: starting it again")
                    process.kill()
                    process.start()
                restarted.update(process.name for process in left)
                start_s = self._clock.now()
            time.sleep(POLL_INTERVAL_S if left else 0)

    def _describe_hang(self, process: StackProcess) -> str:
        return (
            f"{process.name} is not ready after {self.config.start_timeout_s:g} s (stack.start_timeout_s): "
            f"{process.last_error()}; full log: {process.log}"
        )

    def _stop(self) -> None:
        """Stop the engines first: an engine that has lost its master does not end in time."""
        for engines in (True, False):
            self._end([one for one in self._processes.values() if (one.name in self._engine_names) is engines])
        self._open.close()

    def _end(self, processes: Sequence[StackProcess]) -> None:
        """Stop all concurrently, then kill processes that do not end, and remaining workers."""
        deadline_s = self._clock.now() + STOP_TIMEOUT_S
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait(max(0.0, deadline_s - self._clock.now()))
            process.kill()


def build_router_config(settings: Config, stack: RunningStack) -> Config:
    """Return `settings` with a running stack's engines beside its own, its pool masters and its tokenizer."""
    fleet = settings.fleet.model_copy(update={"instances": [*settings.fleet.instances, *stack.instances()]})
    tokenizers = {stack.config.served_name: TokenizerSource(path=str(stack.model)), **settings.tokenizers}
    pool = None
    if (master := stack.master_url) is not None:
        pool = (settings.pool or PoolConfig(masters=[master])).model_copy(update={"masters": [master]})
    return settings.model_copy(update={"fleet": fleet, "tokenizers": tokenizers, "pool": pool})


def _make_logs_folder(config: LocalStackConfig) -> Path:
    folder = Path(config.logs_dir or "stack-logs").resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StackFailed(f"stack.logs_dir: logs cannot be written: {error}: choose another folder") from error
    return folder


def _instance_config(server: StackServer, extra: EngineExtras) -> InstanceConfig:
    if extra.role == "both":
        return InstanceConfig(name=server.name, url=server.url)
    transfer = TransferProtocol(protocol="mooncake", bootstrap_url=extra.bootstrap_url)
    return InstanceConfig(name=server.name, url=server.url, role=extra.role, transfer=transfer)
