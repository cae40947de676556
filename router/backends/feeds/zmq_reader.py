"""Reads ZeroMQ sockets on the event loop, without a task per socket and in short slices.

A ZeroMQ socket has one file descriptor that signals *changes*, edge-triggered: after a signal one must read until
nothing is left, or get no further signal. But a replay of 10,000 batches read to its end would stall every token stream
for a second. So a signal only puts the socket on a list, and one task takes a message from each in turn, for 0.2 ms
(`SLICE_S`), yields to the event loop, and continues. 200 idle sockets cost nothing.

Knows nothing of the content of messages.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

import zmq

from router.clock import Clock

SLICE_MESSAGES = 64
SLICE_S = 0.0002  # may be exceeded by one message: 512 blocks are 0.6 ms


class ZmqSocket:
    """A socket read by a `ZmqReader`. Owns it: `close` closes it, and `take` is never called after."""

    def __init__(self, reader: ZmqReader, socket: zmq.Socket[bytes], take: Callable[[list[bytes]], None]) -> None:
        self.socket = socket
        self.take = take
        self.closed = False
        self.listed = False
        self._reader = reader
        self._descriptor = int(socket.getsockopt(zmq.FD))
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self.wake)
        self.wake()  # a signal may have come, and gone, while the socket was being set up

    def wake(self) -> None:
        """Mark the socket as readable. Also to be called after sending, which swallows signals."""
        if not self.listed and not self.closed:
            self.listed = True
            self._reader.add(self)

    def close(self) -> None:
        """Close the socket."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._descriptor)
            self.socket.close(linger=0)


class ZmqReader:
    """Reads one message from each readable socket in turn. `run` never returns and may be started again."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._listed: deque[ZmqSocket] = deque()
        self._some = asyncio.Event()

    def add(self, socket: ZmqSocket) -> None:
        """Add a readable socket."""
        self._listed.append(socket)
        self._some.set()

    async def run(self) -> None:
        """Read messages in slices for ever."""
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
            socket = self._listed.popleft()
            if socket.closed:
                continue
            try:
                frames = socket.socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                socket.listed = False
                continue
            self._listed.append(socket)  # before `take`: if that raises, the next slice continues with this socket
            socket.take(frames)
