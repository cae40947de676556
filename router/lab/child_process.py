"""Python modules as child processes: the parent's handle of a child, and the entry point of a child service.

The child leads a session of its own, so a Ctrl-C at the terminal reaches only the parent, which then stops its
child. A service reads its options from one JSON argument, prints one JSON line once it accepts requests (the ports
that the system chose are in it) and serves until SIGTERM. A service does not outlive its parent: Linux signals the
death of a parent (prctl(2), PR_SET_PDEATHSIG). Elsewhere a parent that is killed with SIGKILL leaves its children
running.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import IO, Any, Protocol, Self, TypeVar

import msgspec
import uvloop

PR_SET_PDEATHSIG = 1

Options = TypeVar("Options")


class ChildProcess:
    """A running child. `stdin` and `stdout` are its pipes; using one that was not requested fails an assertion."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(
        cls,
        module: str,
        *arguments: str,
        stdin: int = asyncio.subprocess.DEVNULL,
        stdout: int | IO[bytes] = asyncio.subprocess.PIPE,
        stderr: IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Self:
        """Run `python -m module arguments`. `stderr` None: the child writes to the parent's. `env` is added to the
        parent's environment.
        """
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", module, *arguments),
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
                env=os.environ | dict(env or {}),
            )
        )

    @property
    def status(self) -> int | None:
        """Exit status, or the negated signal number of a killed child. None while the child runs."""
        return self._process.returncode

    @property
    def stdin(self) -> asyncio.StreamWriter:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def stdout(self) -> asyncio.StreamReader:
        assert self._process.stdout is not None
        return self._process.stdout

    async def wait(self) -> int:
        """Wait until the child has ended and return its status."""
        return await self._process.wait()

    async def read_announcement(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the service's JSON line. None if the service ended or stayed silent for `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                line = await self.stdout.readline()
        except TimeoutError:
            return None
        return msgspec.json.decode(line, type=dict[str, Any]) if line else None

    async def stop(self, timeout_s: float) -> None:
        """Send SIGTERM, then SIGKILL if the child has not ended after `timeout_s`."""
        if self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(timeout_s):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class ServiceServer(Protocol):
    """A server that describes itself: `announcement` holds the JSON values that its parent needs."""

    @property
    def announcement(self) -> dict[str, Any]: ...


def run_service(
    open_server: Callable[[], AbstractAsyncContextManager[ServiceServer]], parent_pid: int | None = None
) -> None:
    """Serve until SIGTERM or SIGINT, and announce the server on standard output once it accepts requests.

    With `parent_pid`, the process dies with this parent, and ends at once if the parent is already gone.
    """
    if parent_pid is not None:
        _die_with_parent(parent_pid)
    uvloop.run(_serve(open_server))


def run_from_argument(program: str, options: type[Options], run: Callable[[Options], None]) -> None:
    """Run a program whose only argument is a JSON object of `options`; without it, all have their defaults.

    Options that do not validate, and an OSError of `run`, end the process with one line on standard error.
    """
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    try:
        run(msgspec.json.decode(sys.argv[1] if len(sys.argv) > 1 else "{}", type=options))
    except (msgspec.DecodeError, OSError) as error:
        sys.exit(f"{program}: {error}")


async def _serve(open_server: Callable[[], AbstractAsyncContextManager[ServiceServer]]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with open_server() as server:
        sys.stdout.write(msgspec.json.encode(server.announcement).decode() + "\n")
        sys.stdout.flush()
        await stopped.wait()


def _die_with_parent(parent_pid: int) -> None:
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:  # the parent died before the line above
        sys.exit("the parent process is gone")
