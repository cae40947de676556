"""What traces cost: CPU time of the router's process per request, its exporting thread included.

Three routers in turns, in front of the same engines: without tracing, with none of the requests sampled, and with one
in ten, whose spans go to a receiver. They tokenise and look into the caches, so a trace has a span of every usual part.
Differences are of the same turn, over several starts: two processes that do the same differ by 10 us per request. So a
few microseconds cannot be told from the noise of a whole process: what is added to a request that is not sampled is
measured alone as well, in this process, best of several repetitions.
"""

from __future__ import annotations

import timeit
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from router.clock import SystemClock
from router.features.tracing.tracing import Tracing
from router.lab.emulator.vocabulary import DATA
from router.proxy.headers import HeaderRules, TraceHeader
from router.telemetry.trace_context import HeadSampler, attempt_number, draw_ids
from tests.bench import load, routers
from tests.bench.agent_turns import cache_aware_settings, check_local
from tests.bench.answers import MODEL
from tests.bench.figures import Bar, Line
from tests.bench.load import Shape
from tests.bench.prompts import Chat, Words
from tests.bench.routers import Running
from tests.bench.row import BenchRun, NotMeasured, Row
from tests.fakes.otlp import receiver
from tests.router.telemetry.records import a_record

ROUNDS = 20_000
PROMPT_TOKENS = 60
SHAPE = Shape("short chat", "us", requests=1000, connections=16, body_bytes=0)
STARTS, WARM_UP, TURNS, QUICK_TURNS = 3, 1, 8, 3
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


class Spent(NamedTuple):
    """CPU time of a router so far: exact, where `Running.cpu_s` counts ticks."""

    main_us: float
    others_us: float  # of its other threads, which all live as long as it


def spent(router: Running) -> Spent:
    tasks = Path(f"/proc/{router.pid}/task").iterdir()
    us = {task.name: int((task / "schedstat").read_text().split()[0]) / 1e3 for task in tasks}
    main_us = us.pop(str(router.pid))
    return Spent(main_us, sum(us.values()))


def traces(run: BenchRun) -> list[Line]:
    alone = unsampled_us(run.effort.repetitions)
    seen: dict[str, list[float]] = {"off": [], "unsampled": [], "tenth": []}
    threads: dict[str, list[float]] = {name: [] for name in seen}
    with receiver() as received, routers.engines(2, events=True) as backends:
        for start in range(run.effort.of(STARTS, 1)):
            with ExitStack() as stack:
                running = []
                for name, ratio in zip(seen, (None, 0.0, 0.1), strict=True):
                    tracing = None if ratio is None else {"endpoint": received.url, "sample_ratio": ratio}
                    settings = cache_aware_settings(DATA, tracing=tracing)
                    running.append(stack.enter_context(routers.warmroute(backends, run.folder, settings, name)))
                run.report(f"start {start + 1}")
                take_turns(running, run.effort.of(TURNS, QUICK_TURNS), seen, threads)
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
        Line("of that, the exporting thread", "us", subtract(threads["tenth"], threads["off"])),
    ]


def take_turns(
    running: list[Running], turns: int, seen: dict[str, list[float]], threads: dict[str, list[float]]
) -> None:
    """Add CPU time per request to `seen`, and that of all threads but the main one to `threads`, by router."""
    body = Chat(Words(DATA), PROMPT_TOKENS, seed=1).body()  # says its count: it is compared with the router's
    for turn in range(WARM_UP + turns):
        for router in running if turn % 2 else running[::-1]:
            before = spent(router)
            uvloop.run(load.send(SHAPE, router.port, MODEL, body))
            main, others = (now - then for now, then in zip(spent(router), before, strict=True))
            if turn >= WARM_UP:
                seen[router.name].append((main + others) / SHAPE.units)
                threads[router.name].append(others / SHAPE.units)
    for router in running:
        check_local(router)


def subtract(these: Sequence[float], those: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(these, those, strict=True)]


ROWS = (Row("traces", "OpenTelemetry traces", traces, 80, 9),)
