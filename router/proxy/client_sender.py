"""The sending half of a client connection: backpressure, and the ways to end the connection.

While a client does not read, no more should be written to it (`write_paused`); it is cut off when it has read
nothing for `stall_timeout_s`. This module does not depend on requests.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Final

from router.proxy.connection_limits import ConnectionLimits
from router.proxy.timer import DeadlineTimer

LINGER_S: Final = 1.0
RESET_ON_CLOSE: Final = struct.pack("ii", 1, 0)  # SO_LINGER: on, 0 seconds


class ClientSender(asyncio.Protocol):
    """`_on_deadline` is called when the deadline of `_timer`, which is for what the client sends, has passed."""

    transport: asyncio.Transport

    def __init__(self, loop: asyncio.AbstractEventLoop, limits: ConnectionLimits) -> None:
        self._loop = loop
        self._limits = limits
        self._timer = DeadlineTimer(loop, self._on_deadline)
        self._stall_timer = DeadlineTimer(loop, self.reset)  # for what the client reads
        self._writable: asyncio.Future[None] | None = None  # a task waits for the client to read
        self._closing = False  # nothing more is read or served
        self.write_paused = False

    def _on_deadline(self) -> None:
        raise NotImplementedError

    def _linger(self) -> None:
        """Send no more, and discard what still arrives for a while: closing with unread data would be a reset, by
        which the client could lose the answer (RFC 9112 9.6). TLS has its own way to end.
        """
        self._closing = True
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer.set(LINGER_S)
        else:
            self.close()

    def close(self) -> None:
        """Close once the client has read what was sent, or has read nothing for `stall_timeout_s`."""
        self._closing = True
        self._timer.clear()
        if not self.write_paused and self.transport.get_write_buffer_size():
            self._stall_timer.set(self._limits.stall_timeout_s)
        self.transport.close()

    def reset(self) -> None:
        """Cut the connection off with a TCP reset. An ordinary close would look like the regular end of an answer
        without a length, and the system would keep trying to deliver what the client does not read.
        """
        if (tcp := self.transport.get_extra_info("socket")) is not None:
            tcp.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        self.transport.abort()

    def pause_writing(self) -> None:
        self.write_paused = True
        self._stall_timer.set(self._limits.stall_timeout_s)

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._closing:
            self._stall_timer.set(self._limits.stall_timeout_s)  # for what is left
        else:
            self._stall_timer.clear()
        self._wake_writer()

    async def drain(self) -> None:
        while self.write_paused:
            self._writable = self._loop.create_future()
            await self._writable

    def _wake_writer(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
