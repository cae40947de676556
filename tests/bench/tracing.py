"""What traces cost: CPU time of the router's process per request, its exporting thread included.

Three routers in turns, in front of the same engines: without tracing, with none of the requests sampled, and with one
in ten, whose spans go to a receiver. They tokenise and look into the caches, so a trace has a span of every usual part.
Differences are of the same turn. A few microseconds cannot be told from the noise of a whole process: what is added to
a request that is not sampled is measured alone as well, in this process, best of several repetitions.
"""

from __future__ import annotations

import timeit
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from router.clock import SystemClock
from router.proxy.headers import HeaderRules, TraceHeader
from router.telemetry.tracing.context import HeadSampler, attempt_number, draw_ids
from router.telemetry.tracing.tracing import Tracing
from router.testbed.emulator.vocabulary import DATA
from tests.bench import load, routers
from tests.bench.agent_turns import cache_aware_settings, check_local
from tests.bench.answers import MODEL
from tests.bench.figures import Bar, Line
from tests.bench.load import Shape
from tests.bench.routers import Running
from tests.bench.row import BenchRun, NotMeasured, Row
from tests.fakes.otlp import receiver
from tests.router.telemetry.records import a_record

ROUNDS = 20_000
SHAPE = Shape("200-byte request", "us", requests=1000, connections=16, body_bytes=200)
WARM_UP, TURNS, QUICK_TURNS = 2, 24, 3
UNSAMPLED_BAR_US, TENTH_BAR_US = 3.0, 40.0
HEADERS = [(b"host", b"a"), (b"content-type", b"application/json"), (b"content-length", b"200"), (b"accept", b"*/*")]


def unsampled_us(repetitions: int) -> list[float]:
    """Return what tracing adds to the path of a request that is not sampled: the decision, a header, the end."""
    tracing = Tracing(HeadSampler(0.0, draw_ids().__next__), NoSender(), str.split, SystemClock(), slow_s=60, queue=1)  # type: ignore[arg-type, return-value]
    rules, record, fields = HeaderRules(), a_record(), dict(HEADERS)
    number = attempt_number(0)

    def plain() -> None:
        rules.forward(HEADERS, "rec-1")

    def traced() -> None:
        trace = tracing.begin(fields)
        record.trace_id = trace.trace_id
        rules.forward(HEADERS, "rec-1", TraceHeader(trace.traceparent(number), trace.begun))
        assert not tracing.end(trace, record)

    def best_us(path: Any) -> float:
        return min(timeit.repeat(path, number=ROUNDS, repeat=3)) / ROUNDS * 1e6

    return [best_us(traced) - best_us(plain) for _ in range(repetitions)]


class NoSender:
    """Nothing is sampled, so nothing is sent."""

    def build(self, *_: object) -> list[Any]:
        raise NotMeasured("a span was built")

    send = close = build


def cpu_us(router: Running) -> float:
    """Return the CPU time of the router's threads so far. They are the same at the end as at the beginning, and this is
    exact, where `Running.cpu_s` counts ticks.
    """
    tasks = Path(f"/proc/{router.pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e3


def traces(run: BenchRun) -> list[Line]:
    alone = unsampled_us(run.effort.repetitions)
    seen: dict[str, list[float]] = {"off": [], "unsampled": [], "tenth": []}
    with ExitStack() as stack:
        received = stack.enter_context(receiver())
        backends = stack.enter_context(routers.engines(2, events=True))
        running = []
        for name, ratio in zip(seen, (None, 0.0, 0.1), strict=True):
            tracing = None if ratio is None else {"endpoint": received.url, "sample_ratio": ratio}
            settings = cache_aware_settings(DATA, tracing=tracing)
            running.append(stack.enter_context(routers.warmroute(backends, run.folder, settings, name)))
            check_local(running[-1])
        for turn in range(WARM_UP + run.effort.of(TURNS, QUICK_TURNS)):
            run.report(f"turn {turn}")
            for router in running if turn % 2 else running[::-1]:
                before = cpu_us(router)
                uvloop.run(load.send(SHAPE, router.port, MODEL))
                if turn >= WARM_UP:
                    seen[router.name].append((cpu_us(router) - before) / SHAPE.units)
    off, unsampled, tenth = seen.values()
    requests = {span.trace_id for span in received.spans}
    if not requests:
        raise NotMeasured("the receiver got nothing")
    run.notes.append(f"{len(requests):,} traces of {len(received.spans) / len(requests):.1f} spans were received")
    return [
        Line("added to a request that is not sampled, alone", "us", alone, bar=Bar(UNSAMPLED_BAR_US)),
        Line("CPU per request, tracing off", "us", off),
        Line("added to a request, none sampled", "us", subtract(unsampled, off)),
        Line("added to a request, a tenth sampled", "us", subtract(tenth, off), bar=Bar(TENTH_BAR_US)),
    ]


def subtract(these: Sequence[float], those: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(these, those, strict=True)]


ROWS = (Row("traces", "OpenTelemetry traces", traces, 80, 9),)
