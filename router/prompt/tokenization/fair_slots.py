"""Slots for work on prompts, shared fairly by clients: one client's queue does not delay the others."""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque

from router.tenants.fair_share import FairShare


class FairSlots:
    """Runs at most `slots` pieces of work at once. A client that has used up its share (`FairShare`) waits until it
    has less; waiting clients take turns, each with its oldest work.
    """

    def __init__(self, slots: int) -> None:
        self._share = FairShare(slots)
        self._waiting: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by client

    async def take(self, client: str) -> None:
        """Return when `client` has a slot; the caller must give it back."""
        if self._share.take(client, 1) is not None:
            await self._wait(client)

    async def _wait(self, client: str) -> None:
        """Return when a slot was taken for `client`."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back(client)
            raise

    def give_back(self, client: str) -> None:
        """Give a slot back, and pass it to the next waiting client."""
        self._share.give_back(client, 1)
        for name in list(self._waiting):
            queue = self._waiting[name]
            while queue and queue[0].done():  # the caller stopped waiting
                queue.popleft()
            if queue and self._share.take(name, 1) is None:
                queue.popleft().set_result(None)
                self._waiting.move_to_end(name)
            if not queue:
                del self._waiting[name]
