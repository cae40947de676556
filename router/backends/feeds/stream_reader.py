"""Does the work of all event streams on the event loop: a piece of each in turn, in short slices.

A replay of 10,000 batches done in one go would stall every token stream for a second. So a stream with work is put
on a list, and one task does a piece of work of each stream in turn, for 0.2 ms (`SLICE_S`), yields to the event
loop, and continues. After a longer slice it rests as long as the slice took, so engines that publish more than can
be applied take at most half of the loop's time. 200 idle streams cost nothing.

This module does not depend on sockets or messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

from router.clock import Clock

SLICE_PIECES = 64
SLICE_S = 0.0002  # may be exceeded by one piece: 512 blocks are 0.6 ms


class PieceWork(Protocol):
    """Work in pieces of a millisecond or two."""

    listed: bool  # set by the reader

    def step(self) -> bool:
        """Do one piece. Return False when nothing was left to do."""


class StreamReader:
    """Does a piece of work of each listed stream in turn. `run` never returns and may be started again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listed: deque[PieceWork] = deque()
        self._some = asyncio.Event()

    def add(self, work: PieceWork) -> None:
        """List `work`, which has a piece to do."""
        if not work.listed:
            work.listed = True
            self._listed.append(work)
            self._some.set()

    async def run(self) -> None:
        """Work in slices forever."""
        while True:
            await self._some.wait()
            began = self._clock.now()
            self._slice(began + SLICE_S)
            if not self._listed:
                self._some.clear()
            took_s = self._clock.now() - began
            await asyncio.sleep(took_s if took_s > 2 * SLICE_S else 0)

    def _slice(self, until: float) -> None:
        for _ in range(SLICE_PIECES):
            if not self._listed or self._clock.now() >= until:
                return
            work = self._listed.popleft()
            more = True
            try:
                more = work.step()
            finally:  # after an error too: the next slice continues with the others, and then with this work
                work.listed = more
                if more:
                    self._listed.append(work)
