"""Processes that the tests start: each in a process group of its own, with a log, always stopped.

With a guard they end even when the tests are killed.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from router.lab.local_stack.guard import ProcessGuard


class Child:
    """One server process. `start` may follow `stop` or `kill`; the log continues."""

    def __init__(
        self,
        name: str,
        command: list[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        guard: ProcessGuard | None = None,
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = command
        self._environment = {**os.environ, **(environment or {})}
        self._guard = guard
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as out:
            if self._guard is not None:
                self._process = self._guard.start(self._command, self._environment, out)
                return
            self._process = subprocess.Popen(
                self._command, stdout=out, stderr=subprocess.STDOUT, env=self._environment, start_new_session=True
            )

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def signal(self, number: int) -> None:
        """Send a signal to the leader alone."""
        os.kill(self.pid, number)

    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self, patience_s: float = 20.0) -> int | None:
        """Send SIGTERM, after `patience_s` SIGKILL to the group; return the exit code, `None` if it never ran."""
        if self._process is None:
            return None
        if self.running():
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(patience_s)
        return self.kill()

    def kill(self) -> int | None:
        """Send SIGKILL to the whole group, as a crash would end it; return the leader's exit code."""
        if self._process is None:
            return None
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # the leader may be gone and its workers not
        code = self._process.wait()
        if self._guard is not None:
            self._guard.forget(self._process.pid)
        return code

    def tail(self, lines: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def wait(self, ready: Callable[[], bool], deadline_s: float) -> None:
        """Wait for `ready()`. Fails with the log's tail when the process ends first or the time is up."""
        until = time.monotonic() + deadline_s
        while not ready():
            if not self.running() or time.monotonic() > until:
                state = "is not ready in time" if self.running() else "ended"
                raise AssertionError(f"{self.name} {state}; the end of {self.log}:\n{self.tail()}")
            time.sleep(0.05)


def until(what: str, condition: Callable[[], bool], deadline_s: float = 20.0) -> None:
    """Wait for a condition. Fails with `what` when the time is up."""
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s:g} s: {what}")
        time.sleep(0.01)
