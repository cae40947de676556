"""The follower processes: started, restarted when one ends, and stopped with the leader.

They are new processes, not forks: a running event loop with threads and sockets cannot be forked. Each gets one end of
a socket pair and its listening sockets. A process that ends is started again after a pause, which doubles as long as
processes keep ending soon after their start.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable

from router.clock import Clock
from router.tasks import FIRST_PAUSE_S, LONGEST_PAUSE_S, Tasks

log = logging.getLogger("warmroute.workers")

STABLE_S = 30.0  # a process that ran this long did not end because of a failed start
KILL_DELAY_S = 2.0

OnStart = Callable[[int, socket.socket], Awaitable[None]]


class WorkerSupervisor:
    """`on_start` gets the number of each new follower, counting from 1, and the leader's end of its socket pair."""

    def __init__(self, on_start: OnStart, clock: Clock, tasks: Tasks) -> None:
        self.restarts = 0
        self._on_start = on_start
        self._clock = clock
        self._tasks = tasks
        self._processes: dict[int, Process] = {}
        self._stopping = False

    def start(self, followers: int, sockets_of: Callable[[int], list[socket.socket]]) -> None:
        """Start followers, each with its listening sockets."""
        self._sockets_of = sockets_of
        for number in range(1, followers + 1):
            self._tasks.supervise(f"worker {number}", lambda number=number: self._keep_running(number))  # type: ignore[misc]

    def pid(self, number: int) -> int | None:
        """Process id of a follower; None while it does not run."""
        process = self._processes.get(number)
        return None if process is None or process.returncode is not None else process.pid

    def kill(self, number: int) -> None:
        """Kill a follower that runs; it is then started again as after any other end."""
        process = self._processes.get(number)
        if process is not None and process.returncode is None:
            process.kill()

    def stop_restarting(self) -> None:
        """Let processes end from now on without starting them again."""
        self._stopping = True

    async def stop(self, timeout_s: float) -> None:
        """Wait until all processes, already asked to exit, have ended; kill those that still run after the timeout."""
        self.stop_restarting()
        waiting = [self._tasks.spawn("end", process.wait()) for process in self._processes.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=timeout_s + KILL_DELAY_S)
        for number, process in self._processes.items():
            if process.returncode is None:
                log.error("worker %d did not exit in time: killing it", number)
                process.kill()
                await process.wait()

    async def _keep_running(self, number: int) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._stopping:
            started_at = self._clock.now()
            process = self._processes[number] = await self._start_process(number)
            status = await process.wait()
            if self._stopping:
                return
            if self._clock.now() - started_at > STABLE_S:
                pause_s = FIRST_PAUSE_S
            log.warning("worker %d ended with status %s; starting it again in %.1f s", number, status, pause_s)
            self.restarts += 1
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _start_process(self, number: int) -> Process:
        ours, theirs = socket.socketpair()
        with theirs:
            passed = [theirs.fileno(), *(listening.fileno() for listening in self._sockets_of(number))]
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "router.cli.worker", *map(str, passed)),
                pass_fds=passed,
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal is for the leader, which then stops its followers
            )
        await self._on_start(number, ours)
        return process
