"""`make bench`: CPU time of our router's process per request and per chunk, beside the Rust `vllm-router`.

Both stand in front of the same backend and get the same loads in turns, several times over; CPU time comes from /proc,
so a busy machine makes the numbers noisy but does not add to them. The ratios are the result; the goal is 1.5 or less.
Then the cost of doing nothing: one router and 200 idle engines. Last, by policy, what one decision and one shadow cost
at 64 targets (`decisions.py`).

    python -m tests.bench [--repetitions 5] [--json FILE] [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from router.stack.install import InstallFailed
from tests.bench import decisions, load, routers
from tests.bench.engine import MODEL
from tests.bench.load import Shape
from tests.bench.routers import Running

GOAL = 1.5
IDLE_GOAL_PERCENT = 5.0
IDLE_ENGINES = 200
SETTLE_S, IDLE_S = 6.0, 20.0
SHAPES = (
    Shape("200-byte request", "request", requests=8000, connections=16, body_bytes=200),
    Shape("320 KB request", "request", requests=1600, connections=4, body_bytes=320_000),
    Shape("streamed chunk", "chunk", requests=96, connections=32, body_bytes=200, chunks=400),
)
Start = Callable[[list[int], Path], AbstractContextManager[Running]]


@dataclass
class Measured:
    """What was seen: microseconds of CPU per unit, by load and router; idle cost as percent of a core, by router."""

    unit_us: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    idle_percent: dict[str, float] = field(default_factory=dict)
    rss_mb: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    decisions: list[decisions.Cost] = field(default_factory=list)

    def ratios(self, shape: str) -> list[float]:
        """Ours over theirs, repetition by repetition."""
        seen = self.unit_us[shape]
        return [a / b for a, b in zip(seen.get("warmroute", []), seen.get("vllm-router", []), strict=False)]


def start_all(
    stack: ExitStack, starts: list[Start], backends: list[int], folder: Path, seen: Measured
) -> list[Running]:
    running = []
    for start in starts:
        try:
            running.append(stack.enter_context(start(backends, folder)))
        except InstallFailed as failed:
            seen.notes.append(f"{start.__name__} is left out: {failed}")
    return running


def measure_loads(starts: list[Start], shapes: list[Shape], repetitions: int, folder: Path, seen: Measured) -> None:
    with ExitStack() as stack, Progress(transient=True) as progress:
        backends = stack.enter_context(routers.engines(2))
        running = start_all(stack, starts, backends, folder, seen)
        bar = progress.add_task("loads", total=len(shapes) * (repetitions + 1) * len(running))
        for shape in shapes:
            for repetition in range(repetitions + 1):
                for router in running if repetition % 2 else running[::-1]:
                    progress.update(bar, description=f"{shape.name}, {router.name}")
                    before = router.cpu_s()
                    uvloop.run(load.send(shape, router.port, MODEL))
                    spent_us = (router.cpu_s() - before) * 1e6 / shape.units
                    if repetition:  # the first round only warms up
                        seen.unit_us.setdefault(shape.name, {}).setdefault(router.name, []).append(spent_us)
                    progress.advance(bar)
        seen.rss_mb |= {router.name: router.rss_mb() for router in running}


def measure_idle(starts: list[Start], idle_s: float, folder: Path, seen: Measured) -> None:
    with ExitStack() as stack, Progress(transient=True) as progress:
        backends = stack.enter_context(routers.engines(IDLE_ENGINES, events=True))
        for start in starts:
            with ExitStack() as one:
                for router in start_all(one, [start], backends, folder, seen):
                    bar = progress.add_task(f"{IDLE_ENGINES} idle engines, {router.name}", total=SETTLE_S + idle_s)
                    _pass_time(SETTLE_S, progress, bar)
                    before, began = router.cpu_s(), time.monotonic()
                    _pass_time(idle_s, progress, bar)
                    seen.idle_percent[router.name] = 100 * (router.cpu_s() - before) / (time.monotonic() - began)


def _pass_time(seconds: float, progress: Progress, bar: object) -> None:
    async def pass_() -> None:
        for _ in range(round(seconds * 2)):
            await asyncio.sleep(0.5)
            progress.advance(bar, 0.5)  # type: ignore[arg-type]

    asyncio.run(pass_())


def table(seen: Measured) -> Table:
    shown = Table(title="CPU of the router's process: median (lowest-highest)", box=box.SIMPLE)
    shown.add_column("", no_wrap=True)
    for column in ("warmroute", "vllm-router", "ratio", "goal"):
        shown.add_column(column, justify="right", no_wrap=True)
    for shape, by_router in seen.unit_us.items():
        ours, theirs = (_spread(by_router.get(name, []), 0) for name in ("warmroute", "vllm-router"))
        ratios = seen.ratios(shape)
        met = bool(ratios) and statistics.median(ratios) <= GOAL
        shown.add_row(f"us per {shape}", ours, theirs, _spread(ratios, 2), _goal(f"{GOAL}", met) if ratios else "")
    idle = seen.idle_percent
    if idle:
        ours, theirs = (f"{idle[name]:.1f} %" if name in idle else "-" for name in ("warmroute", "vllm-router"))
        met = idle.get("warmroute", 0.0) < IDLE_GOAL_PERCENT
        goal = _goal(f"{IDLE_GOAL_PERCENT:g} %", met) if "warmroute" in idle else ""
        shown.add_row(f"{IDLE_ENGINES} idle engines", ours, theirs, "", goal)
    return shown


def _goal(goal: str, met: bool) -> str:
    return f"{goal} [green]met[/]" if met else f"{goal} [red]missed[/]"


def _spread(values: list[float], digits: int) -> str:
    if not values:
        return "-"
    middle, low, high = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f}-{high:.{digits}f})"


def main() -> None:
    arguments = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    arguments.add_argument("--repetitions", type=int, default=5)
    arguments.add_argument("--only", choices=["warmroute", "rust"], help="measure one router alone")
    arguments.add_argument("--json", type=Path, help="write every measurement to this file")
    arguments.add_argument("--quick", action="store_true", help="a tenth of the load: to see that it runs")
    chosen = arguments.parse_args()
    starts: list[Start] = [
        start for start in (routers.warmroute, routers.rust) if chosen.only in (None, start.__name__)
    ]
    shrink = 10 if chosen.quick else 1
    shapes = [
        Shape(s.name, s.unit, max(s.connections, s.requests // shrink), s.connections, s.body_bytes, s.chunks)
        for s in SHAPES
    ]
    seen = Measured()
    console = Console()
    if not console.is_terminal:
        console = Console(width=100)
    with tempfile.TemporaryDirectory(prefix="warmroute-bench-") as folder:
        measure_loads(starts, shapes, chosen.repetitions, Path(folder), seen)
        measure_idle(starts, IDLE_S / shrink, Path(folder), seen)
        seen.decisions = decisions.measure(chosen.repetitions)
    console.print(table(seen))
    console.print(decisions.table(seen.decisions))
    for note in seen.notes:
        console.print(note)
    if chosen.json:
        chosen.json.write_text(json.dumps(vars(seen), indent=1) + "\n")


if __name__ == "__main__":
    main()
