"""Renders the metrics page once at a time, for all callers that request it meanwhile.

A page of a large fleet takes a third of a second of CPU time, and anyone who reaches the port may request it as
often as they like. So requests that arrive while a page is rendered wait for the next one and share it; and between
two pages the router rests at least as long as the first one took. Pages therefore take half of a core at most.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from router.clock import Clock
from router.tasks import Tasks
from router.telemetry.metrics.exposition import PageForm


class SharedScrape:
    """Call it for a page whose values are not older than the call. `render` renders one page; pages of different
    forms wait for each other, too.
    """

    def __init__(self, render: Callable[[PageForm], Awaitable[bytes]], tasks: Tasks, clock: Clock) -> None:
        self._render = render
        self._tasks = tasks
        self._clock = clock
        self._free_at = 0.0  # when the next rendering may begin
        self._last: asyncio.Task[bytes] | None = None  # the last of the renderings that have not ended
        self._next: dict[PageForm, asyncio.Task[bytes]] = {}  # renderings that have not begun

    async def __call__(self, form: PageForm = "text") -> bytes:
        if (page := self._next.get(form)) is None:
            page = self._tasks.spawn("scrape", self._take_turn(form, self._last))
            self._next[form] = self._last = page
        return await asyncio.shield(page)

    async def _take_turn(self, form: PageForm, before: asyncio.Task[bytes] | None) -> bytes:
        if before is not None:
            await asyncio.wait((before,))
        await asyncio.sleep(max(0.0, self._free_at - self._clock.now()))
        page = self._next.pop(form)
        began = self._clock.now()
        try:
            return await self._render(form)
        finally:
            now = self._clock.now()
            self._free_at = now + (now - began)
            if self._last is page:
                self._last = None
