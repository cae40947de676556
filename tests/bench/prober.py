"""Small requests at a steady rate to several ports in turns, with the duration of each: a process of its own.

Open loop: a request is sent when it is due, over a connection that is free or a new one, so that one slow answer does
not hide the wait of those behind it. It takes little of a core, so it adds little to what it measures.

    python -m tests.bench.prober --ports 8000 8001 --body FILE --rate 100 --seconds 5
                                      prints JSON when it is over: by port, milliseconds of each request
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import Any, cast

import httptools
import uvloop

ANSWERED_S = 20.0


class Connection(asyncio.Protocol):
    """One request at a time; `free` gets it back."""

    def __init__(self, port: Port) -> None:
        self._port = port
        self._parser: Any = None
        self._transport: asyncio.Transport | None = None
        self._began_ns = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self in self._port.free:
            self._port.free.remove(self)

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._parser = httptools.HttpResponseParser(self)
        self._began_ns = time.monotonic_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() == 200:
            self._port.took_ms.append((time.monotonic_ns() - self._began_ns) / 1e6)
        else:
            self._port.failed += 1
        self._port.free.append(self)


class Port:
    """A destination of requests, and their outcomes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.free: list[Connection] = []
        self.took_ms: list[float] = []
        self.sent = self.failed = 0

    async def send(self, request: bytes) -> None:
        self.sent += 1
        if not self.free:
            _, made = await asyncio.get_running_loop().create_connection(
                lambda: Connection(self), "127.0.0.1", self.number
            )
            made.send(request)
        else:
            self.free.pop().send(request)


async def probe(ports: list[Port], body: bytes, rate: float, seconds: float) -> None:
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    request = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    for port in ports:
        await port.send(request)  # connections and caches are warm before it counts
    await _answered(ports)
    for port in ports:
        port.took_ms.clear()
        port.sent = 0
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with asyncio.TaskGroup() as sending:
        for number in range(round(rate * seconds)):
            await asyncio.sleep(began + number / rate - loop.time())
            for port in ports:
                sending.create_task(port.send(request))
    await _answered(ports)


async def _answered(ports: list[Port]) -> None:
    async with asyncio.timeout(ANSWERED_S):
        while any(len(port.took_ms) + port.failed < port.sent for port in ports):  # noqa: ASYNC110  only at its end
            await asyncio.sleep(0.005)


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--ports", type=int, nargs="+", required=True)
    arguments.add_argument("--body", type=Path, required=True)
    arguments.add_argument("--rate", type=float, required=True)
    arguments.add_argument("--seconds", type=float, required=True)
    chosen = arguments.parse_args()
    ports = [Port(number) for number in chosen.ports]
    uvloop.run(probe(ports, chosen.body.read_bytes(), chosen.rate, chosen.seconds))
    told = {port.number: {"took_ms": port.took_ms, "failed": port.failed} for port in ports}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
