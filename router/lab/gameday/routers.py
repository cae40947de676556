"""The routers of a game day as processes: started, killed with all their workers, and started again on their ports.

A router is `python -m router.cli.gameday.router`. Its folder has its configuration, its log and its records. Its
processes die with the process that started it: workers as soon as their supervisor is gone and their requests have
ended.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple

from router.errors import WarmrouteError
from router.lab.child_process import ChildProcess

ROUTER_MODULE = "router.cli.gameday.router"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 5.0
CLOCK_FILE = "clock"  # in the router's folder: seconds by which its wall clock is wrong, read on SIGUSR1
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class StageNotReady(WarmrouteError):
    """A process did not start; its own messages are on standard error or in the log that the message names."""


class ProcessSize(NamedTuple):
    """A process at a moment, in seconds since the load began."""

    at_s: float
    name: str  # of the router, and "supervisor" or "worker" if it has workers
    pid: int
    rss_mb: float  # resident memory, MiB
    descriptors: int  # open ones


class StageRouter:
    """One router. Its log continues, and it keeps its ports, when it is started again; `close` ends it."""

    def __init__(self, name: str, folder: Path, config: Mapping[str, Any], env: Mapping[str, str]) -> None:
        """`folder` is made; `config` has the ports; `env` is added to the environment."""
        self.name = name
        self.folder = folder
        self.url, self.admin_url = (f"http://127.0.0.1:{config[part]['port']}" for part in ("listen", "admin"))
        self._config = config
        self._env = env
        self._process: ChildProcess | None = None
        self._pid = 0  # of the router, or of its supervisor
        self._open = ExitStack()
        self._log_pipe = -1

    async def start(self) -> None:
        """Start the router, and return when it accepts connections. Raises StageNotReady."""
        file = self.folder / "router.yaml"
        if self._log_pipe < 0:
            self.folder.mkdir(exist_ok=True)
            file.write_text(json.dumps(self._config, indent=1), encoding="utf-8")  # JSON is YAML
            self._open_log()
        with os.fdopen(os.dup(self._log_pipe), "wb") as stderr:
            arguments = str(file), str(os.getpid())
            self._process = await ChildProcess.start(ROUTER_MODULE, *arguments, stderr=stderr, env=self._env)
        announcement = await self._process.read_announcement(START_TIMEOUT_S)
        if announcement is None:
            raise StageNotReady(f"{self.name} did not start; its log: {self.folder / 'router.log'}")
        self._pid = announcement["pid"]

    async def close(self) -> None:
        """Stop the router and end its log."""
        if self._process is not None:
            await self._process.stop(STOP_TIMEOUT_S)
        self._open.close()

    async def kill(self) -> None:
        """Kill the router with all its workers, as when its pod is killed."""
        for pid in self._pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self._process is not None:
            await self._process.wait()

    def kill_worker(self, number: int) -> None:
        """Kill one of its workers, 0 is the one that runs longest; the supervisor starts it again."""
        workers = self._pids()[1:]
        if number < len(workers):
            os.kill(workers[number], signal.SIGKILL)

    def fill_disk(self) -> None:
        """Make every write of the router fail that would make a file longer (EFBIG), as on a full disk."""
        self._limit_files(0)

    def free_disk(self) -> None:
        self._limit_files(resource.RLIM_INFINITY)

    def set_clock(self, offset_s: float) -> None:
        """Make the wall clock of a router without workers wrong by `offset_s`."""
        (self.folder / CLOCK_FILE).write_text(str(offset_s), encoding="utf-8")
        os.kill(self._pid, signal.SIGUSR1)

    def measure(self, at_s: float) -> list[ProcessSize]:
        """Return the sizes of its processes that run now."""
        first, *workers = self._pids()
        named = [(f"{self.name} supervisor" if workers else self.name, first)]
        named += [(f"{self.name} worker", pid) for pid in workers]
        return [size for name, pid in named if (size := _measure(at_s, name, pid)) is not None]

    def read_log(self) -> list[str]:
        """Return the lines of its log."""
        return (self.folder / "router.log").read_text(encoding="utf-8", errors="replace").splitlines()

    def _pids(self) -> list[int]:
        """Return the router, or its supervisor and the workers in the order of their starts."""
        children = ""
        with suppress(FileNotFoundError):  # it has ended
            children = Path(f"/proc/{self._pid}/task/{self._pid}/children").read_text(encoding="ascii")
        return [self._pid, *map(int, children.split())]

    def _limit_files(self, most_bytes: int) -> None:
        for pid in self._pids():
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, resource.RLIM_INFINITY))

    def _open_log(self) -> None:
        """Copy what the router writes to its log: itself it could not while its disk is full."""
        log = self._open.enter_context((self.folder / "router.log").open("wb"))
        read, self._log_pipe = os.pipe()
        loop = asyncio.get_running_loop()
        loop.add_reader(read, _copy, read, log)
        self._open.callback(os.close, self._log_pipe)
        self._open.callback(os.close, read)
        self._open.callback(loop.remove_reader, read)


def _measure(at_s: float, name: str, pid: int) -> ProcessSize | None:
    """Return the size of a process; None if it has ended."""
    process = Path(f"/proc/{pid}")
    try:
        pages = int((process / "statm").read_text(encoding="ascii").split()[1])
        rss_mb = pages * PAGE_BYTES / (1 << 20)
        return ProcessSize(at_s, name, pid, rss_mb, len(os.listdir(process / "fd"))) if pages else None
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # the latter two while it ends
        return None


def _copy(pipe: int, log: IO[bytes]) -> None:
    """Copy what is in the pipe to the log."""
    log.write(os.read(pipe, 65536))
    log.flush()
