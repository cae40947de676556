"""Tasks with an owner and a name. Nothing else may start one.

`spawn` runs something once; `supervise` runs something that should never end, and starts it again with growing
pauses when it fails, so that one broken feed cannot take the router down or die in silence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

log = logging.getLogger("warmroute.tasks")

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 10.0


class Tasks:
    """The tasks of one owner; `close` ends and awaits them all."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.restarts = 0
        self._running: set[asyncio.Task[Any]] = set()

    def spawn(self, name: str, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work, name=f"{self.owner}:{name}")
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    def supervise(self, name: str, work: Callable[[], Awaitable[None]]) -> asyncio.Task[Any]:
        return self.spawn(name, self._again(name, work))

    async def _again(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
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

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (failure := task.exception()) is not None:
            log.error("task %s failed", task.get_name(), exc_info=failure)

    async def finish(self, patience_s: float) -> None:
        """Waits for what runs to end by itself, then closes."""
        if self._running:
            await asyncio.wait(self._running, timeout=patience_s)
        await self.close()

    async def close(self) -> None:
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
