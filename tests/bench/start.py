"""What a router takes before its first request: the time until it is ready, its resident memory then, and the time that
`warmroute --help` takes.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import NamedTuple

from router.lab.emulator.vocabulary import DATA
from router.lab.local_stack.install import InstallFailed
from tests.bench import routers
from tests.bench.agent_turns import cache_aware_settings
from tests.bench.figures import Bar, Line, beside
from tests.bench.routers import ROOT, Running
from tests.bench.row import BenchRun, Row

ENGINES = 8
IDLE_S = 3.0
HELP = [sys.executable, "-m", "router", "--help"]


class Started(NamedTuple):
    ready_s: float
    idle_mb: float


def measure(run: BenchRun) -> list[Line]:
    ours, theirs, helped_s = list[Started](), list[Started](), list[float]()
    with ExitStack() as stack:
        backends = stack.enter_context(routers.engines(ENGINES, events=True))
        settings = cache_aware_settings(DATA)
        for repetition in range(run.effort.repetitions):
            run.report(f"starting routers, {repetition + 1} of {run.effort.repetitions}")
            ours.append(_start(routers.warmroute(backends, run.folder, settings)))
            try:
                theirs.append(_start(routers.rust(backends, run.folder)))
            except InstallFailed as why:
                run.notes.append(f"vllm-router is left out: {why}")
            began = time.perf_counter()
            subprocess.run(HELP, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
            helped_s.append(time.perf_counter() - began)
    line = partial(beside, peer="vllm-router" if theirs else "")
    return [
        line(
            f"start until ready, {ENGINES} engines",
            "s",
            [one.ready_s for one in ours],
            [one.ready_s for one in theirs],
            bar=Bar(1.0),
        ),
        line(
            "resident then, idle", "MB", [one.idle_mb for one in ours], [one.idle_mb for one in theirs], bar=Bar(90.0)
        ),
        Line("`warmroute --help`", "s", helped_s, bar=Bar(0.2)),
    ]


def _start(router: AbstractContextManager[Running]) -> Started:
    began = time.perf_counter()
    with router as running:
        ready_s = time.perf_counter() - began
        time.sleep(IDLE_S)
        return Started(ready_s, running.rss_mb())


ROWS = (Row("start", "start and idle memory", measure, 30, 12),)
