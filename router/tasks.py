"""Background tasks with an owner and a name. All tasks of the router are started here.

`spawn` runs a coroutine once. `supervise` runs a coroutine that should never end, and restarts it after growing
pauses when it fails, so that a broken feed neither takes the router down nor stops without a log line.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

log = logging.getLogger("warmroute.tasks")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0
CANCEL_AGAIN_S = 15.0  # longer than any task needs for its cleanup


T = TypeVar("T")


async def in_turns(items: Sequence[T], per_turn: int) -> AsyncIterator[T]:
    """Yield the items, `per_turn` of them in each turn of the event loop, so that requests are served in between."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % per_turn == 0:
            await asyncio.sleep(0)


class Alarm:
    """Ends the sleep of one task early."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """End the sleep, or the next one if there is none now."""
        self._rung.set()

    async def sleep(self, seconds: float) -> None:
        """Return after `seconds`, at once if they are negative, or when the alarm rings."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._rung.wait()
        self._rung.clear()


class Tasks:
    """The tasks of one owner; `close` cancels and awaits them all."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.restarts = 0
        self._running: dict[asyncio.Task[Any], None] = {}  # in the order of their start, in which they are cancelled

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Start `work`. Its failure is logged."""
        task = asyncio.create_task(work, name=f"{self.owner}:{name}")
        self._running[task] = None
        task.add_done_callback(self._on_done)
        return task

    def supervise(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[Any]:
        """Start `work`, and start it again whenever it raises; a normal return ends the task."""
        return self.spawn(name, self._run_supervised(name, work))

    async def _run_supervised(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                await work()
                return
            except Exception:  # the one supervised loop: log, count, start again
                self.restarts += 1
                log.exception("%s:%s failed; starting it again in %.1f s", self.owner, name, pause_s)
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, LONGEST_PAUSE_S)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=failure)

    async def finish(self, timeout_s: float) -> None:
        """Wait until the running tasks end by themselves, `timeout_s` at most, then close."""
        if self._running:
            await asyncio.wait(self._running, timeout=timeout_s)
        await self.close()

    async def close(self, again_s: float = CANCEL_AGAIN_S) -> None:
        """Cancel all tasks and wait until they have ended. Tasks that still run after `again_s` are cancelled
        again: libraries that use asyncio.wait_for occasionally lose a cancellation (Python 3.11).
        """
        running = list(self._running)
        while running:
            for task in running:
                task.cancel()
            _, left = await asyncio.wait(running, timeout=again_s)
            if running := [task for task in running if task in left]:
                names = ", ".join(sorted(task.get_name() for task in running))
                log.warning("cancelled %g s ago and still running: %s; cancelling again", again_s, names)
