"""What simulating a large fleet costs: CPU time per request of `warm` over 1,000 instances, as minutes per million.

The same as `warmroute simulate -p warm -w tools -n 1000 --rho 0.6 --requests 1000000`, in this process, with the
workload built before, and with fewer requests: a million take a quarter of an hour. Starting the fleet is in it, which
adds about 4 % to 20,000 requests.
"""

from __future__ import annotations

import gc
import time

from router.lab.sweep.parallel import SweepWorker
from router.lab.sweep.spec import SweepSpec, make_cells
from tests.bench.figures import Bar, Line
from tests.bench.row import BenchRun, Row

INSTANCES, RHO = 1000, 0.6
REQUESTS, QUICK_REQUESTS = 20_000, 8_000
MILLION = 1e6
BAR_MINUTES = 10.0


def measure(run: BenchRun) -> list[Line]:
    requests = run.effort.of(REQUESTS, QUICK_REQUESTS)
    minutes = []
    for repetition in range(run.effort.repetitions):
        run.report(f"{requests:,} requests, repetition {repetition + 1}")
        minutes.append(minutes_per_million(requests, INSTANCES))
    what = f"a million requests to {INSTANCES:,} simulated instances, from {requests:,}"
    return [Line(what, "minutes of a core", minutes, bar=Bar(BAR_MINUTES))]


def minutes_per_million(requests: int, instances: int) -> float:
    """Return the CPU time of one simulation, in minutes per million requests."""
    spec = SweepSpec(policies=("warm",), workload="tools", requests=requests, instances=str(instances), rho=str(RHO))
    (cell,) = make_cells(spec, lambda _: None)
    worker = SweepWorker(lambda _: None, lambda: False)
    worker.rate(cell)  # builds the workload
    before = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)  # as `start_worker` sets it
    try:
        began = time.process_time()
        worker.play(cell)
        return (time.process_time() - began) / requests * MILLION / 60
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


ROWS = (Row("simulated", "simulating 1,000 instances", measure, 150, 12),)
