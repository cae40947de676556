"""Several client processes as one load: each gets a share of the sessions, all begin together, their rows are gathered.

Processes, because a client that streams and measures in one thread is late for others long before an engine is busy.
They are led over pipes (`client_process.py`) and do not hear the terminal's Ctrl-C: a cancellation here closes their
input, they tell what they have, and end.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence

import msgspec

from router.clock import Clock
from router.errors import WarmrouteError
from router.tasks import Tasks
from router.testbed.loadgen.framing import encode_frame, read_frame
from router.testbed.loadgen.job import LoadJob, SentRequest

READY_S = 60.0
AHEAD_S = 0.1  # of the common beginning, so that all have heard of it by then
LEFT_S = 5.0  # for what is told after the end of the input

Tell = Callable[[SentRequest], None]


class ClientsNotStarted(WarmrouteError):
    """Client processes did not start. They have told why on standard error."""


async def run_clients(jobs: Sequence[LoadJob], clock: Clock, tell: Tell) -> list[str]:
    """Runs each job in a process of its own and returns what went wrong with processes, one line each.

    `tell` hears of every request. On cancellation it hears of those that ended by then. Raises NoClients.
    """
    tasks = Tasks("clients")
    clients: list[_Client] = []
    try:
        for number, job in enumerate(jobs):
            clients.append(await _Client.start(number, job))
        await _ready(clients)
        begin = msgspec.msgpack.encode(clock.wall() + AHEAD_S)
        listening = [tasks.spawn(f"client {one.number}", one.run(begin, tell)) for one in clients]
        try:
            await asyncio.wait(listening)
        except asyncio.CancelledError:
            for one in clients:
                one.leave()
            await asyncio.wait(listening, timeout=LEFT_S)
            raise
        return [f"client process {one.number} ended with status {one.status}" for one in clients if one.status]
    finally:
        await tasks.close()
        await asyncio.gather(*(one.end() for one in clients))


async def _ready(clients: Sequence[_Client]) -> None:
    try:
        async with asyncio.timeout(READY_S):
            started = await asyncio.gather(*(one.ready() for one in clients))
    except TimeoutError:
        started = [False]
    if not all(started):
        raise ClientsNotStarted(f"{started.count(False)} of {len(clients)} client processes did not start")


class _Client:
    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.number = number
        self._process = process
        self._stdin, self._stdout = process.stdin, process.stdout

    @classmethod
    async def start(cls, number: int, job: LoadJob) -> _Client:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "router.testbed.loadgen.client_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        one = cls(number, process)
        one._stdin.write(encode_frame(msgspec.msgpack.encode(job)))
        return one

    @property
    def status(self) -> int | None:
        """0: it came to its end; None: it has not ended."""
        return self._process.returncode

    async def ready(self) -> bool:
        return await read_frame(self._stdout) is not None

    async def run(self, begin: bytes, tell: Tell) -> None:
        """Until it ends."""
        self._stdin.write(encode_frame(begin))
        decode = msgspec.msgpack.Decoder(SentRequest).decode
        while (message := await read_frame(self._stdout)) is not None:
            tell(decode(message))
        await self._process.wait()

    def leave(self) -> None:
        self._stdin.close()

    async def end(self) -> None:
        self._stdin.close()
        if self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
