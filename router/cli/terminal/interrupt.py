"""Ctrl-C ends a measurement, not its report: what was done so far is reported and marked as partial."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol


class Interruptible(Protocol):
    interrupted: bool


@contextmanager
def cancellable(report: Interruptible) -> Iterator[None]:
    """Treat a cancellation of the current task as the end of the block, and set `report.interrupted`."""
    try:
        yield
    except asyncio.CancelledError:
        report.interrupted = True
        if (task := asyncio.current_task()) is not None:
            task.uncancel()


@contextmanager
def catch_interrupt() -> Iterator[Callable[[], bool]]:
    """Take Ctrl-C over for the block; the function that it gives returns whether Ctrl-C was pressed."""
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)
