"""One process of the stack: in a group of its own, with a log file, ended for certain together with its workers."""

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

from router.testbed.local_stack.commands import Program
from router.testbed.local_stack.guard import ProcessGuard

CAUSES = (re.compile(r"\b\w+(?:Error|Exception): .+"), re.compile(r"^F\d{4} .+"), re.compile(r"^E\d{4} .+"))
NOT_THE_CAUSE = (" INFO ", " WARNING ", "Engine core initialization failed", "EngineDeadError")
TAIL_BYTES = 200_000


class ChildProcess:
    """A program that may be started again after it has ended; its log goes on then."""

    def __init__(self, program: Program, log: Path, guard: ProcessGuard, http: httpx.Client) -> None:
        self.program = program
        self.log = log
        self._guard = guard
        self._http = http
        self._process: subprocess.Popen[bytes] | None = None
        log.write_bytes(b"")

    @property
    def name(self) -> str:
        return self.program.name

    @property
    def pid(self) -> int:
        """Also the id of its process group."""
        assert self._process is not None, f"{self.name} was never started"
        return self._process.pid

    def start(self) -> None:
        with self.log.open("ab") as out:
            self._process = self._guard.start(self.program.command, {**os.environ, **self.program.environment}, out)

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def works(self) -> bool:
        """One look, of a second at most."""
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
        """Ask it to end; `kill` makes sure."""
        if self.running():
            assert self._process is not None
            self._process.terminate()

    def wait(self, timeout_s: float) -> None:
        """Until it has ended, or the time is up."""
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout_s)

    def kill(self) -> None:
        """SIGKILL to the whole group, as a crash would end it: the leader may be gone and its workers not."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
            self._guard.forget(self.pid)

    def describe_end(self) -> str:
        """How it ended, and what its log says of the cause, in one line."""
        code = self._process.returncode if self._process is not None else None
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with status {code}"
        return f"{self.name} {how}: {self.last_error()}; all of it: {self.log}"

    def last_error(self) -> str:
        """The first error in the log's last part, Python's before Mooncake's own; without one its last line."""
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
            lines = log.read().decode(errors="replace").strip().splitlines() or ["it has said nothing"]
        causes = [line for line in lines if not any(phrase in line for phrase in NOT_THE_CAUSE)]
        found = (match[0].strip() for cause in CAUSES for line in causes if (match := cause.search(line)))
        return next(found, lines[-1].strip())
