"""Queries to peers: each is a message with a number, answered with a message of the same number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from itertools import count
from typing import Generic, TypeVar

from router.control.peers.parts import Message, Peers

Reply = TypeVar("Reply")


class PeerQueries(Generic[Reply]):
    """The queries of one part that wait for replies of one kind."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._numbers = count()
        self._waiting: dict[tuple[str, int], asyncio.Future[Reply]] = {}  # by run and number

    def __len__(self) -> int:
        """Return the number of queries that wait."""
        return len(self._waiting)

    async def send(
        self, runs: Collection[str], build: Callable[[int], Message], timeout_s: float
    ) -> dict[str, Reply | None]:
        """Send these runs the message that `build` makes from a number. Return their replies, by run; None if no
        reply came in time. A run that ends meanwhile is left out.
        """
        number, loop = next(self._numbers), asyncio.get_running_loop()
        sent: dict[str, asyncio.Future[Reply]] = {run: loop.create_future() for run in runs}
        if not sent:
            return {}
        self._waiting.update({(run, number): reply for run, reply in sent.items()})
        try:
            for run in sent:
                self._peers.send_to(run, build(number))
            await asyncio.wait(sent.values(), timeout=timeout_s)
        finally:
            for run in sent:
                del self._waiting[run, number]
        living = {run: reply for run, reply in sent.items() if not reply.cancelled()}
        return {run: reply.result() if reply.done() else None for run, reply in living.items()}

    def on_reply(self, run: str, number: int, reply: Reply) -> None:
        """Accept the reply of a run; a late reply is dropped."""
        if (waiting := self._waiting.get((run, number))) is not None and not waiting.done():
            waiting.set_result(reply)

    def forget(self, run: str) -> None:
        """Cancel the queries to the peer with this run id, which has ended."""
        for (queried, _), waiting in self._waiting.items():
            if queried == run:
                waiting.cancel()
