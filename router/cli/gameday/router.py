"""The router of a game day: `python -m router.cli.gameday.router CONFIG PARENT_PID`.

This router differs from the one that `warmroute serve` runs in two ways: it announces its addresses as a line of
JSON, and its wall clock can be made to jump, as by a step of NTP. On SIGUSR1 it reads the offset of its wall clock
in seconds from the file `clock` beside its configuration. The monotonic clock is unaffected, as when a system's
clock is set. With workers, the clocks of these processes are the system's.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, Self

from router.app import App
from router.cli.serve.run import Router
from router.cli.terminal.logs import log_to_stderr
from router.clock import SystemClock
from router.config.reader import read_config
from router.config.schema import Config
from router.control.process import raise_open_file_limit, tune_interpreter
from router.control.workers.supervisor import Supervisor
from router.errors import WarmrouteError
from router.lab.child_process import run_service
from router.lab.gameday.routers import CLOCK_FILE
from router.proxy.listening_sockets import ListeningSockets


class SteppedClock(SystemClock):
    """The system's clock, with a wall clock that is wrong by `offset_s`."""

    def __init__(self) -> None:
        self.offset_s = 0.0

    def wall(self) -> float:
        return SystemClock.wall() + self.offset_s


class GamedayRouter:
    """Runs while entered, with the engines of its configuration. Entering raises ConfigError for a port in use."""

    def __init__(self, config: Config, clock_file: Path) -> None:
        self._clock = SteppedClock()
        self._clock_file = clock_file
        self._app = _build_router(config, self._clock)

    async def __aenter__(self) -> Self:
        raise_open_file_limit()
        await self._app.start()
        tune_interpreter()
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self._step)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._app.stop()

    @property
    def announcement(self) -> dict[str, Any]:
        """Addresses for the parent process, as JSON values."""
        public, admin = (f"http://127.0.0.1:{port}" for port in (self._app.port, self._app.admin_port))
        return {"url": public, "admin_url": admin, "pid": os.getpid()}

    def _step(self) -> None:
        self._clock.offset_s = float(self._clock_file.read_text(encoding="utf-8"))


def _build_router(config: Config, clock: SteppedClock) -> Router:
    """Return the router in this process, or the supervisor of its workers."""
    if config.workers > 1:
        return Supervisor(config, None, clock, only_picker=False, sockets=ListeningSockets([]))
    return App(config, clock)


def run(file: Path, parent_pid: int) -> None:
    """Serve until SIGTERM. Raises ConfigError for a wrong configuration."""
    config = read_config(file)
    log_to_stderr(config.log.level)
    run_service(lambda: GamedayRouter(config, file.with_name(CLOCK_FILE)), parent_pid)


if __name__ == "__main__":
    try:
        run(Path(sys.argv[1]), int(sys.argv[2]))
    except WarmrouteError as failure:
        sys.exit(f"warmroute gameday: {failure}")
