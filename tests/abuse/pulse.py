"""Times small requests on one warm connection, from a process of its own: what everybody else notices of an attack.

python -m tests.abuse.pulse HOST PORT      every 5 ms, until standard input ends; prints {"requests", "longest_ms"}
"""

from __future__ import annotations

import asyncio
import json
import select
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from tests.paths import ROOT

EVERY_S = 0.005
REQUEST = b"GET /health HTTP/1.1\r\nhost: r\r\n\r\n"
END = b'{"status":"ok"}'


class Pulse:
    """What was measured, once the block has ended."""

    requests = 0
    longest_ms = 0.0


@asynccontextmanager
async def pulse(url: str) -> AsyncIterator[Pulse]:
    """Measure while the block runs."""
    address = urlsplit(url)
    command = (sys.executable, "-m", "tests.abuse.pulse", str(address.hostname), str(address.port))
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    await process.stdout.readline()  # it has begun
    found = Pulse()
    try:
        yield found
    finally:
        process.stdin.close()
        said = json.loads(await process.stdout.read() or b'{"requests": 0, "longest_ms": 1e9}')
        await process.wait()
        found.requests, found.longest_ms = said["requests"], said["longest_ms"]


def main(host: str, port: int) -> None:
    longest_s, requests = 0.0, 0
    with socket.create_connection((host, port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for warm_up in range(sys.maxsize):
            began = time.perf_counter()
            connection.sendall(REQUEST)
            answer = b""
            while not answer.endswith(END):
                answer += connection.recv(4096)
            if warm_up == 20:
                print("begun", flush=True)
            elif warm_up > 20:
                longest_s = max(longest_s, time.perf_counter() - began)
                requests += 1
            if select.select([sys.stdin], [], [], EVERY_S)[0]:
                break
    print(json.dumps({"requests": requests, "longest_ms": longest_s * 1e3}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
