"""Accepts the connections of an address that several processes serve, each with listening sockets of its own.

The kernel assigns each connection to one of the sockets, for good (Linux, SO_REUSEPORT). Every process has the
sockets of all processes. Each process accepts from its own sockets, and one process also accepts from the sockets
of processes that do not accept, so that a connection in the backlog of a process that dies is not lost. Neither a
flood of connections nor a lack of file descriptors keeps the event loop from its other work.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from itertools import chain

from router.proxy.listening_sockets import SocketShare

log = logging.getLogger("warmroute.web")

ACCEPTS_AT_ONCE = 64  # connections, before the event loop runs anything else
ACCEPT_RETRY_S = 1.0  # after the system had no descriptor for a connection
WARN_INTERVAL_S = 60.0  # between two lines about connections that are not served


class Acceptor:
    """Passes each connection, with its client's address, to `admit`, from `start` to `close`."""

    def __init__(self, share: SocketShare, admit: Callable[[socket.socket, str], None]) -> None:
        self._share = share
        self._admit = admit
        # One by one where others may accept from the same socket, so that all share a burst of connections.
        self._accepts_at_once = 1 if share.processes > 1 or share.sockets.handed_over else ACCEPTS_AT_ONCE
        self._groups: list[list[socket.socket]] = []  # of each process; none: not bound, or closed
        self._served = {share.number}  # processes whose sockets this one accepts from
        self._accepting: set[socket.socket] = set()
        self._started = False
        self._warn = RareWarnings().warn

    @property
    def bound(self) -> bool:
        return bool(self._groups)

    def sockets_of(self, process: int) -> list[socket.socket]:
        return self._groups[process]

    async def bind(self, host: str, port: int) -> int:
        """Take over or bind the sockets of all processes. Return the bound port. Raises `ConfigError` when the
        address cannot be bound.
        """
        self._groups = await self._share.sockets.open(host, port, self._share.processes)
        return int(self._groups[0][0].getsockname()[1])

    def start(self) -> None:
        """Accept connections from here on."""
        self._started = True
        self._follow()

    def serve_for(self, process: int, on: bool) -> None:
        """Accept from the sockets of another process, which does not accept; with `on` False, no longer."""
        (self._served.add if on else self._served.discard)(process)
        if self._started:
            self._follow()

    def close(self) -> None:
        """Accept no more, and close the sockets; a socket that another process also has stays open there."""
        sockets = list(chain(*self._groups))
        self._groups.clear()
        self._follow()
        for listening in sockets:
            listening.close()

    def _follow(self) -> None:
        """Accept from the sockets of the processes that this one serves, and from no others."""
        loop = asyncio.get_running_loop()
        wanted = {one for n, group in enumerate(self._groups) if n in self._served for one in group}
        for listening in self._accepting - wanted:
            loop.remove_reader(listening)
        for listening in wanted - self._accepting:
            loop.add_reader(listening, self._accept, listening)
        self._accepting = wanted

    def _accept(self, listening: socket.socket) -> None:
        """Accept waiting connections, up to `_accepts_at_once`."""
        for _ in range(self._accepts_at_once):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return
            except OSError as error:  # no descriptor, or no memory: waiting connections keep waiting
                self._warn("connections cannot be accepted, trying again every %g s: %s", ACCEPT_RETRY_S, error)
                loop = asyncio.get_running_loop()
                loop.remove_reader(listening)
                loop.call_later(ACCEPT_RETRY_S, self._accept_again, listening)
                return
            self._admit(accepted, address[0])

    def _accept_again(self, listening: socket.socket) -> None:
        if listening in self._accepting:
            asyncio.get_running_loop().add_reader(listening, self._accept, listening)


class RareWarnings:
    """Logs a warning unless one was logged a short while ago."""

    def __init__(self) -> None:
        self._next_s = 0.0  # not before; seconds of the event loop

    def warn(self, message: str, *values: object) -> None:
        now = asyncio.get_running_loop().time()
        if now >= self._next_s:
            self._next_s = now + WARN_INTERVAL_S
            log.warning(message, *values)
