"""Print a rollout: the plan, a line per engine and stage, and the figures of each engine's step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from rich.console import Console
from rich.status import Status

from router.cli.terminal.output import MISSING
from router.clock import Clock
from router.operate.rollout.engine import EngineReading
from router.operate.rollout.figures import TrafficFigures
from router.operate.rollout.rollout import RolloutStep, Stage

WORDS: dict[Stage, str] = {
    "look": "looking at the traffic before",
    "drain": "draining",
    "restart": "restarting",
    "prove": "proving",
    "settle": "serves again; looking at the traffic",
    "done": "done",
}


def print_plan(console: Console, engines: Sequence[EngineReading], command: str | None) -> None:
    """Print which engines will be restarted, in which order, and how."""
    how = "somebody else restarts each of them" if command is None else f"command: {command}"
    console.print(f"{len(engines)} engines, one after the other; {how}", markup=False, soft_wrap=True)
    for number, engine in enumerate(engines, 1):
        line = f"{number:3} {engine.id}  {engine.url}  {', '.join(engine.models)}  {engine.requests} requests now"
        console.print(line, markup=False, soft_wrap=True)


class RolloutReport:
    """Shows the running stage while entered, and prints a line at the end of each stage."""

    def __init__(self, console: Console, clock: Clock) -> None:
        self._console = console
        self._clock = clock
        self._status = Status("", console=console)
        self._last: RolloutStep | None = None

    def __enter__(self) -> Self:
        self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._status.stop()
        if self._last is not None and self._last.stage != "done":
            self._print_end(self._last)

    def show(self, step: RolloutStep) -> None:
        """Show the rollout's progress."""
        last, self._last = self._last, step
        if last is not None and (last.engine, last.stage) != (step.engine, step.stage):
            self._print_end(last)
        if step.stage == "done":
            self._console.print(f"{step.total} engines restarted and proved")
        self._status.update(self._describe(step))

    def _print_end(self, step: RolloutStep) -> None:
        self._console.print(self._describe(step), markup=False, soft_wrap=True)

    def _describe(self, step: RolloutStep) -> str:
        took_s = self._clock.now() - step.since_s
        who = "" if step.engine is None else f"{step.number}/{step.total} {step.engine}: "
        note = f"; {step.note}" if step.note else ""
        return f"{who}{WORDS[step.stage]}, {took_s:.0f} s; {describe_figures(step.figures)}{note}"


def describe_figures(figures: TrafficFigures) -> str:
    """Return the figures in one line."""
    p90 = MISSING if figures.ttft_p90_s is None else f"{figures.ttft_p90_s:.2f} s"
    hits = MISSING if figures.hit_share is None else f"{figures.hit_share:.0%}"
    return f"{figures.requests:.0f} requests, {figures.failed:.0f} failed, p90 {p90}, hits {hits}"
