"""CPU time per request and per chunk beside the peers: the same load through each router in turns, several times.

CPU time comes from /proc, so a busy machine makes the figures noisy but does not add to them.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from functools import partial

import uvloop

from tests.bench import load, routers
from tests.bench.answers import MODEL
from tests.bench.figures import Bar, Line, beside
from tests.bench.load import LoadFailed, Shape
from tests.bench.routers import Running
from tests.bench.row import BenchRun, NotMeasured, Row

IDLE_ENGINES, IDLE_BAR_PERCENT = 200, 5.0
SMALL = Shape("CPU per 200-byte request", "us", requests=8000, connections=16, body_bytes=200)
LARGE = Shape("CPU per 320 KB request", "us", requests=1600, connections=4, body_bytes=320_000)
CHUNK = Shape("CPU per streamed chunk", "us", requests=96, connections=32, body_bytes=200, chunks=400)


def spent_us(router: Running, shape: Shape, body: bytes | None = None, key: str | None = None) -> float:
    """Return CPU time of the router's process per unit of one load; `body` and `key` are those of `load.send`. Raises
    LoadFailed through the load.
    """
    before = router.cpu_s()
    uvloop.run(load.send(shape, router.port, MODEL, body, key))
    return (router.cpu_s() - before) * 1e6 / shape.units


def in_turns(run: BenchRun, running: list[Running], shape: Shape) -> dict[str, list[float]]:
    """Return a value per repetition by router. The first round only warms up; the order changes each time.

    A peer that does not answer as it should is left out, with a note. Raises LoadFailed when our router does not.
    """
    seen: dict[str, list[float]] = {router.name: [] for router in running}
    for repetition in range(run.effort.repetitions + 1):
        for router in running if repetition % 2 else running[::-1]:
            run.report(f"{shape.name}, {router.name}, {repetition} of {run.effort.repetitions}")
            if router.name not in seen:
                continue
            try:
                us = spent_us(router, shape)
            except LoadFailed as why:
                if router.name == "warmroute":
                    raise
                run.notes.append(f"{router.name} is left out: {why}")
                del seen[router.name]
                continue
            if repetition:
                seen[router.name].append(us)
    return seen


def through_routers(shape: Shape, bar: float, run: BenchRun) -> list[Line]:
    shape = shape.shrunk(run.effort.of(1, 2))
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(2))
        starts = (routers.warmroute, routers.rust, routers.sglang)
        running = routers.start_all(stack, starts, backends, run.folder, run.notes)
        if not any(router.name == "warmroute" for router in running):
            raise NotMeasured(run.notes[-1])
        seen = in_turns(run, running, shape)
        memory = ", ".join(f"{router.name} {router.rss_mb():.0f} MB" for router in running)
    run.notes.append(f"resident after it: {memory}")
    ours = seen.pop("warmroute")
    bars = {"vllm-router": Bar(bar, "ratio")}  # what Rust does with the same policy
    return [beside(shape.name, shape.unit, ours, theirs, peer, bars.get(peer)) for peer, theirs in seen.items()] or [
        Line(shape.name, shape.unit, ours)
    ]


def idle(run: BenchRun) -> list[Line]:
    """Return percent of a core, with event streams open, health probed and metrics polled."""
    settle_s, watched_s = run.effort.seconds(6.0, 3.0), run.effort.seconds(20.0, 5.0)
    percent: dict[str, list[float]] = {}
    with ExitStack() as stack:
        run.report(f"starting {IDLE_ENGINES} idle engines")
        backends = stack.enter_context(routers.engines(IDLE_ENGINES, events=True))
        for start in (routers.warmroute, routers.rust):
            with ExitStack() as one:
                for router in routers.start_all(one, (start,), backends, run.folder, run.notes):
                    run.report(f"{router.name} in front of {IDLE_ENGINES} idle engines")
                    time.sleep(settle_s)
                    before, began = router.cpu_s(), time.monotonic()
                    time.sleep(watched_s)
                    percent[router.name] = [100 * (router.cpu_s() - before) / (time.monotonic() - began)]
    bar = Bar(IDLE_BAR_PERCENT)
    theirs = percent.get("vllm-router", [])
    what = f"CPU with {IDLE_ENGINES} idle engines"
    return [Line(what, "%", percent.get("warmroute", []), theirs, "vllm-router" if theirs else "", bar=bar)]


ROWS = (
    Row("small", "small request, round_robin", partial(through_routers, SMALL, 1.25), 75, 5),
    Row("large", "320 KB request, round_robin", partial(through_routers, LARGE, 0.8), 75, 7),
    Row("chunk", "streamed chunk, round_robin", partial(through_routers, CHUNK, 1.0), 110, 10),
    Row("idle", "idle fleet", idle, 65, 16),
)
