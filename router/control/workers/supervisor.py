"""The followers as processes: started, started again when one ends, and ended with the leader.

Fresh processes, not forks: a running event loop with its threads and sockets cannot be forked. Each is born with one
end of a socket pair, and that is all the two know of each other. One that ends is started again after a pause, which
grows as long as it keeps ending soon after its start.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import Awaitable, Callable

from router.clock import Clock
from router.tasks import Tasks

log = logging.getLogger("warmroute.workers")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
STEADY_S = 30.0  # one that lived so long has not ended for what it met at its start
LAST_MOMENT_S = 2.0

Born = Callable[[int, socket.socket], Awaitable[None]]


class WorkerSupervisor:
    """`born` gets our end of the line to a follower, by its number, which counts from 1."""

    def __init__(self, born: Born, clock: Clock, tasks: Tasks) -> None:
        self.restarts = 0
        self._born = born
        self._clock = clock
        self._tasks = tasks
        self._processes: dict[int, Process] = {}
        self._ending = False

    def start(self, followers: int) -> None:
        for number in range(1, followers + 1):
            self._tasks.supervise(f"worker {number}", lambda number=number: self._keep(number))  # type: ignore[misc]

    def pid(self, number: int) -> int | None:
        """None: it does not run just now."""
        process = self._processes.get(number)
        return None if process is None or process.returncode is not None else process.pid

    def ending(self) -> None:
        """Who ends from here on is not started again."""
        self._ending = True

    async def end(self, within_s: float) -> None:
        """They were told to end and have so long to do it; who has not by then is killed."""
        self.ending()
        waiting = [self._tasks.spawn("end", process.wait()) for process in self._processes.values()]
        if waiting:
            await asyncio.wait(waiting, timeout=within_s + LAST_MOMENT_S)
        for number, process in self._processes.items():
            if process.returncode is None:
                log.error("worker %d does not end, and is killed", number)
                process.kill()
                await process.wait()

    async def _keep(self, number: int) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._ending:
            began = self._clock.now()
            process = self._processes[number] = await self._start(number)
            status = await process.wait()
            if self._ending:
                return
            if self._clock.now() - began > STEADY_S:
                pause_s = FIRST_PAUSE_S
            log.warning("worker %d ended with status %s; starting it again in %.1f s", number, status, pause_s)
            self.restarts += 1
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    async def _start(self, number: int) -> Process:
        ours, theirs = socket.socketpair()
        with theirs:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "router.cli.worker", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                start_new_session=True,  # a Ctrl-C at the terminal is for the leader, which then ends its followers
            )
        await self._born(number, ours)
        return process
