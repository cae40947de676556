"""Ctrl-C ends the measuring, not the reporting: what is done by then is told, and marked as a part."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Interruptible(Protocol):
    interrupted: bool


@contextmanager
def cancellable(report: Interruptible) -> Iterator[None]:
    """Takes a cancellation as the end of the block. What the block has opened is closed by then."""
    try:
        yield
    except asyncio.CancelledError:
        report.interrupted = True
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
