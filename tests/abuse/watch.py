"""Watches a router's process from outside: how long its event loop stands still, its memory, its CPU time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import inf
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

MB = 1024 * 1024
TRIES = 5  # the least of them counts: other processes of the machine delay answers as well
TICKS_PER_S = os.sysconf("SC_CLK_TCK")

_PROBE = """
import select, socket, sys, time
connection = socket.create_connection((sys.argv[1], int(sys.argv[2])))
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
waits = []
def ask():
    begun = time.perf_counter()
    connection.sendall(b"GET /health HTTP/1.1\\r\\nhost: r\\r\\n\\r\\n")
    answer = b""
    while not answer.endswith(b"}"):
        received = connection.recv(65536)
        if not received:
            sys.exit("the router closed the connection")
        answer += received
    return time.perf_counter() - begun
for _ in range(20):
    ask()
print("warm", flush=True)
while True:
    waits.append(ask())
    if select.select([sys.stdin], [], [], 0.005)[0]:
        if not sys.stdin.readline():
            break
        waits.sort()
        print(waits[-1], waits[len(waits) * 99 // 100], flush=True)
        waits = []
"""


class Waits(NamedTuple):
    """How long a client waited for answers: at most, and 99 of 100 times, ms."""

    longest_ms: float
    p99_ms: float


class LoopProbe:
    """Asks a process of its own, which sends a small request every 5 ms on one connection, for its waits."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def waits(self) -> Waits:
        """Return the waits for answers since the last call, and begin anew."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(b"\n")
        return Waits(*(float(word) * 1e3 for word in (await self._process.stdout.readline()).split()))

    async def longest_ms(self) -> float:
        """Return the longest wait for an answer since the last call, and begin anew."""
        return (await self.waits()).longest_ms

    async def standstill_ms(self, attack: Callable[[], Awaitable[object]], enough_ms: float) -> float:
        """Return the longest wait during `attack`, which is repeated while that is longer than `enough_ms`."""
        least = inf
        for _ in range(TRIES):
            await self.longest_ms()
            await attack()
            least = min(least, await self.longest_ms())
            if least <= enough_ms:
                break
        return least


@asynccontextmanager
async def loop_probe(url: str) -> AsyncIterator[LoopProbe]:
    """Yield a probe of the router at `url`, on a connection that is warm."""
    parts = urlsplit(url)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-S", "-c", _PROBE, str(parts.hostname), str(parts.port)), stdin=pipe, stdout=pipe
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await process.stdout.readline() == b"warm\n"
        yield LoopProbe(process)
    finally:
        process.stdin.close()
        await process.wait()


def cpu_s(pid: int) -> float:
    """Return the CPU time that the process has used, seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def reset_peak(pid: int) -> None:
    """Begin anew with `peak_bytes`."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def peak_bytes(pid: int) -> int:
    """Return the most memory that was resident since `reset_peak`."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024


def open_files(pid: int) -> int:
    """Return how many file descriptors the process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))
