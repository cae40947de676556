"""ZeroMQ sockets on the event loop, without a task per socket and in slices that nobody feels.

A ZeroMQ socket offers one file descriptor that signals *changes*, edge-triggered: after a signal one must read until
nothing is left, or hear nothing more. But a replay of 10,000 batches read to its end would stop every stream of
tokens for a second. So a signal only puts the socket on a list, and one pump takes a message from each in turn, for
0.2 ms (`SLICE_S`), lets the loop do its other work, and goes on. 200 silent sockets cost nothing.

Knows nothing of what the messages mean.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import zmq

from router.clock import Clock

SLICE_MESSAGES = 64
SLICE_S = 0.0002  # a message more may come on top: 512 blocks are 0.6 ms


class ZmqSocket:
    """One socket that the pump reads. Owns it: `close` closes it, and `take` is never called after."""

    def __init__(self, pump: ZmqReader, socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None]) -> None:
        self.socket = socket
        self.take = take
        self.closed = False
        self.listed = False
        self._pump = pump
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self.wake)
        self.wake()  # a signal may have come, and gone, while the socket was being set up

    def wake(self) -> None:
        """There may be something to read. Also to be called after sending: that swallows signals."""
        if not self.listed and not self.closed:
            self.listed = True
            self._pump.add(self)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._descriptor)
            self.socket.close(linger=0)


class ZmqReader:
    """Reads all listed readers, a message each, round and round. `run` never ends and may be started again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listed: deque[ZmqSocket] = deque()
        self._some = asyncio.Event()

    def add(self, reader: ZmqSocket) -> None:
        self._listed.append(reader)
        self._some.set()

    async def run(self) -> None:
        while True:
            await self._some.wait()
            self._slice()
            if not self._listed:
                self._some.clear()
            await asyncio.sleep(0)

    def _slice(self) -> None:
        until = self._clock.now() + SLICE_S
        for _ in range(SLICE_MESSAGES):
            if not self._listed or self._clock.now() >= until:
                return
            reader = self._listed.popleft()
            if reader.closed:
                continue
            try:
                frames = reader.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                reader.listed = False
                continue
            self._listed.append(reader)  # before it takes: should that fail, the next slice goes on here
            reader.take(frames)
