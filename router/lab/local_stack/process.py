"""One process of the stack, with its own process group and log file, stopped together with its workers."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from router.config.private_files import open_private
from router.lab.local_stack.commands import Program
from router.lab.local_stack.guard import ProcessGuard

CAUSES = (re.compile(r"\b\w+(?:Error|Exception): .+"), re.compile(r"^F\d{4} .+"), re.compile(r"^E\d{4} .+"))
# Mooncake's transfer engine logs this as an error at every start.
HARMLESS = "Local segment descriptor not found"
NOT_THE_CAUSE = (" INFO ", " WARNING ", "Engine core initialization failed", "EngineDeadError", HARMLESS)
TAIL_BYTES = 200_000


class StackProcess:
    """A program that can be restarted after it has ended; its log then continues."""

    def __init__(self, program: Program, log: Path, guard: ProcessGuard, http: httpx.Client) -> None:
        self.program = program
        self.log = log
        self._guard = guard
        self._http = http
        self._process: subprocess.Popen[bytes] | None = None
        with open(log, "wb", opener=open_private):  # engines may log prompts
            pass

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int:
        """PID, which is also the id of the process group."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = self._guard.start(self.program.command, {**os.environ, **self.program.environment}, out)

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def is_ready(self) -> bool:
        """Probe the program's `ready` address once, for at most a second."""
        ready = self.program.ready
        try:
            if ready.startswith("tcp://"):
                parts = urlsplit(ready)
                socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=1.0).close()
                return True
            return self._http.get(ready).status_code == 200
        except (OSError, httpx.HTTPError):
            return False

    def terminate(self) -> None:
        """Send SIGTERM. `kill` ends a process that ignores it."""
        if self.is_running():
            assert self._process is not None
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until the process has ended."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)

    def kill(self) -> None:
        """Send SIGKILL to the whole group, as a crash would end it: workers may have outlived their leader."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._guard.forget(self.pid)

    def describe_end(self) -> str:
        """Return one line on how the process ended, with the cause from its log."""
        code = self._process.returncode if self._process is not None else None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        return f"{self.name} {how}: {self.last_error()}; full log: {self.log}"

    def last_error(self) -> str:
        """Return the first error in the last part of the log, a Python error before one of Mooncake's own; if there
        is none, the last line.
        """
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines() or ["the log is empty"]
        causes = [line for line in lines if not any(phrase in line for phrase in NOT_THE_CAUSE)]
        errors = (match[0].strip() for cause in CAUSES for line in causes if (match := cause.search(line)))
        return next(errors, lines[-1].strip())
