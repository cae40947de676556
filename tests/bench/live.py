"""What an open live page costs: a router's own process with 500 targets and 1,000 requests per second, page open and
closed.

The router is built as for service and its admin listener runs, but no engine is asked and no request relayed: targets,
load, event batches and records are made here, at the rate of a busy fleet, whether or not the page is open. So the
difference is the page's: composing, comparing, encoding and sending. The viewer is another process.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from router.app import App
from router.config import schema
from router.fleet.engine_facts import EventEndpoint, Gauges, ModelCard
from router.kvcache.events import EventBatch
from router.scheduling.policy.record import Record
from tests.bench.busy_fleet import BusyFleet
from tests.bench.figures import Bar, Line
from tests.bench.row import BenchRun, NotMeasured, Row

TARGETS, REQUESTS_PER_S = 500, 1000
STEP_S = 0.02
RUNNING = 2000  # requests that have not ended, each for 2 s
TEMPLATES = 64
READ = "import sys, urllib.request\nfor line in urllib.request.urlopen(sys.argv[1]): pass"


class PretendedFleet:
    """Targets with load and event streams, and the records of requests to them."""

    def __init__(self, app: App) -> None:
        self._scheduler, self._records = app.core.scheduler, app.core.recent_records
        self._number = 0
        self._running: list[Record] = []
        self._seq = 0
        for n in range(TARGETS):
            name = f"engine-{n:03}"
            self._scheduler.fleet.join(schema.InstanceConfig(url=f"http://{name}:8000", name=name))
            source = EventEndpoint(0, f"tcp://{name}:5557", None, "")
            self._scheduler.add_instance(name, [ModelCard("m", None, None, None)], [source])
        self._targets = [target for instance in self._scheduler.fleet for target in instance.targets.values()]
        self._templates = list(BusyFleet(8).records(TEMPLATES))
        self._bookings = [target.book(100, 3000) for target in self._targets]

    async def work(self, seconds: float) -> float:
        """Work so long at the full rate; return the CPU seconds of this process."""
        began, cpu = time.monotonic(), time.process_time()
        steps = 0
        while (now := time.monotonic()) < began + seconds:
            self._step()
            steps += 1
            await asyncio.sleep(max(0.0, began + steps * STEP_S - now))
        if steps < 0.9 * seconds / STEP_S:
            raise NotMeasured("the machine is too busy: the load fell behind")
        return time.process_time() - cpu

    def _step(self) -> None:
        requests = round(REQUESTS_PER_S * STEP_S)
        for _ in range(requests):
            self._number += 1
            template = self._templates[self._number % TEMPLATES]
            record = msgspec.structs.replace(template, id=f"run-{self._number}", at_wall_s=time.time(), done=False)
            self._records.add(record)
            self._running.append(record)
        for record in self._running[: max(0, len(self._running) - RUNNING)]:
            record.done = True
        del self._running[: max(0, len(self._running) - RUNNING)]
        for n in range(self._number, self._number + requests):
            self._change(n % TARGETS)

    def _change(self, n: int) -> None:
        target, now = self._targets[n], time.monotonic()
        self._bookings[n].release()
        self._bookings[n] = target.book(100 + self._number % 900, 3000 + self._number % 5000)
        gauges = Gauges(self._number % 20, self._number % 3, 0.3 + self._number % 40 / 100, 16, 500_000, None, None)
        self._scheduler.apply_metrics(target.instance.id, {0: gauges}, now)
        self._seq += 1
        self._scheduler.indexer.on_batch(target.id, EventBatch(self._seq, time.time() - 0.003, 0, [], {}, 200))


@asynccontextmanager
async def viewer(port: int) -> AsyncIterator[None]:
    """A page that is open, as far as the router can tell: another process that reads the feed."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", READ, f"http://127.0.0.1:{port}/admin/live")
    try:
        yield
        if process.returncode is not None:
            raise NotMeasured("the viewer ended")
    finally:
        process.kill()
        await process.wait()


def measure(run: BenchRun) -> list[Line]:
    """Return the CPU time that an open page takes beyond a closed one."""
    opened, closed = asyncio.run(_measure(run))
    extra = [a - b for a, b in zip(opened, closed, strict=True)]
    run.notes.append(f"the load itself takes {min(closed):.1f} to {max(closed):.1f} % of a core")
    what = f"live page open, {TARGETS} targets and {REQUESTS_PER_S:,} requests/s: CPU time beyond closed"
    return [Line(what, "% of a core", extra, bar=Bar(3.0))]


async def _measure(run: BenchRun) -> tuple[list[float], list[float]]:
    admin = {"host": "127.0.0.1", "port": 0}
    app = App(schema.Config.model_validate({"admin": admin, "policies": {"a": {"scorers": [{"name": "queue_depth"}]}}}))
    await app.admin_listener.start()
    fleet, seconds = PretendedFleet(app), run.effort.seconds(10.0, 8.0)
    await fleet.work(10.0)  # until the records hold what they hold at this rate
    opened, closed = [], []
    for n in range(run.effort.repetitions):
        run.report(f"{n + 1} of {run.effort.repetitions}")
        closed.append(100 * await fleet.work(seconds) / seconds)
        async with viewer(app.admin_port):
            await fleet.work(3.0)  # it starts, and the history is computed
            before = app.live.pictures
            opened.append(100 * await fleet.work(seconds) / seconds)
            run.notes.append(f"{app.live.pictures - before} pictures in {seconds:.0f} s")
        await fleet.work(1.0)  # the feed ends
    await app.stop()
    return opened, closed


ROWS = (Row("live-page", "the live page", measure, 130, 30),)
