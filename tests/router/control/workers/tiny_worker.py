"""A worker's process that serves nothing: `python -m tests.router.control.workers.tiny_worker FD SOCKET...`.

It speaks to its supervisor as a real one does, and notes what it learns in `TINY_WORKERS`, a folder: a file of JSON
lines for each process, named by its process id. `TINY_TROUBLE` is what goes wrong with the worker of number 1: it
`fails` to start, is `mute`, or does not `stop`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from router.control.workers.messages import (
    Members,
    Query,
    WorkerReady,
    WorkerStarted,
    WorkerStopping,
    WorkerUp,
)
from router.control.workers.metrics_merge import encode_families
from router.control.workers.supervisor_link import SupervisorLink
from router.tasks import Tasks


class Page(Collector):
    """Ten requests were answered here, and one is in flight."""

    def __init__(self, number: int) -> None:
        self.number = number

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("warmroute_requests_total", "requests", labels=("worker",))
        requests.add_metric((str(self.number),), 10)
        yield requests
        yield GaugeMetricFamily("warmroute_in_flight_requests", "now", value=1)
        yield GaugeMetricFamily("warmroute_of_duty", "of the worker on duty", value=self.number)


def note(event: str, **fields: object) -> None:
    with (Path(os.environ["TINY_WORKERS"]) / str(os.getpid())).open("a") as file:
        file.write(json.dumps({"event": event, **fields}) + "\n")


async def work(sock: socket.socket, sockets: int) -> None:
    tasks = Tasks("tiny worker")
    link = SupervisorLink(tasks)
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, link.stopping.set)
    start = await link.connect(sock)
    number, trouble = start.number, os.environ.get("TINY_TROUBLE") if start.number == 1 else None
    fields = {"learn": start.learn, "hold": start.hold, "join": start.join, "host": start.host, "name": start.name}
    note("start", number=number, sockets=sockets, port=json.loads(start.config)["listen"]["port"], **fields)
    if trouble == "fails":
        await link.report_failure("a port is taken")
        link.close()
        return

    async def answer(query: Query) -> bytes:
        note("query", query=query)
        if trouble == "mute":
            await asyncio.Event().wait()
        if query in ("page", "counters"):
            return encode_families(Page(number), whole=query == "page")
        return b""

    def on_members(members: Members) -> None:
        living = {member.number: [member.pid, member.up] for member in members.living}
        note("members", living=living, on_duty=members.on_duty, ready=members.ready)

    link.answer, link.on_members = answer, on_members
    await link.announce_built(f"{number}-{os.getpid()}")
    link.send(WorkerStarted())
    link.send(WorkerReady())
    joining = asyncio.create_task(note_when(link.may_join, "join"))
    await link.may_open.wait()
    link.send(WorkerUp())
    await link.stopping.wait()
    note("stop", idle_s=link.idle_s, gone=link.gone)
    link.send(WorkerStopping())
    while trouble == "stop" or (link.idle_s is None and not link.gone):  # noqa: ASYNC110  until it is asked, or killed
        await asyncio.sleep(0.01)
    joining.cancel()
    await tasks.close()
    link.close()


async def note_when(event: asyncio.Event, name: str) -> None:
    await event.wait()
    note(name)


if __name__ == "__main__":
    channel, *passed = (socket.socket(fileno=int(number)) for number in sys.argv[1:])
    asyncio.run(work(channel, len(passed)))
