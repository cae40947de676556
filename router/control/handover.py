"""A router's listening sockets go to the process that replaces it, over a Unix socket.

    successor                                   predecessor, which continues serving
    connects                          ->        saves the index snapshot
                                      <-        its sockets (SCM_RIGHTS), and what operators have set
    starts, joins its engines, accepts
    "release"                         ->        accepts no more
                                      <-        "released", then it finishes its requests and ends

Both processes accept from the same sockets for a moment, and at least one of them accepts at any time: no
connection is refused, and no connection that waits in a backlog is reset. If the successor ends before "release",
the predecessor continues unchanged. The Unix socket has no file: its name, which contains the public address, is in
Linux's abstract namespace, which belongs to the network namespace, as ports do. Only processes of the same user,
and of root, get the sockets.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress

from router.errors import WarmrouteError
from router.proxy.listening_sockets import ListeningSockets

log = logging.getLogger("warmroute.app")

GREETING = b"warmroute sockets 2"
RELEASE, RELEASED = b"release", b"released"
LENGTH_BYTES = 4  # of the state that follows the greeting
MOST_SOCKETS = 253  # in one message: SCM_MAX_FD
ANSWER_TIMEOUT_S = 60.0  # for a predecessor to save its snapshot
RELEASE_TIMEOUT_S = 10.0


class SocketGiver:
    """Gives `sockets` to a successor. Calls `prepare` before that, which returns the state for it, and `release` once
    the successor accepts connections; then `released` is set.
    """

    def __init__(
        self,
        sockets: ListeningSockets,
        prepare: Callable[[], Awaitable[bytes]],
        release: Callable[[], Awaitable[None]],
    ) -> None:
        self._sockets = sockets
        self._prepare = prepare
        self._release = release
        self.released = asyncio.Event()

    async def serve(self, host: str, port: int) -> None:
        """Wait for a successor of the router at this address, until one has taken over. Return at once if hand-over
        is not possible.
        """
        if sys.platform != "linux":
            return
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as listening:
            listening.setblocking(False)
            try:
                listening.bind(_name(host, port))
            except OSError as error:
                log.warning("--take-over will not find this router: another process has its name: %s", error.strerror)
                return
            listening.listen()
            while not self.released.is_set():
                connection, _ = await loop.sock_accept(listening)
                with connection:
                    await self._give(connection)

    async def _give(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        if not _is_trusted(connection):
            log.warning("listening sockets: a request by a process of another user was refused")
            return
        state = await self._prepare()
        try:
            socket.send_fds(connection, [GREETING], [listening.fileno() for listening in self._sockets.all])
            await loop.sock_sendall(connection, len(state).to_bytes(LENGTH_BYTES) + state)
            log.info("a new process has the listening sockets, and takes over when it is ready")
            if await loop.sock_recv(connection, len(RELEASE)) != RELEASE:
                log.warning("the new process ended before it was ready: this one continues")
                return
        except OSError as error:
            log.warning("the new process did not take over, this one continues: %s", error)
            return
        await self._release()
        self.released.set()
        with suppress(OSError):
            await loop.sock_sendall(connection, RELEASED)


class Predecessor:
    """A running router that has given its listening sockets to this process, and its `state` (`OperatorState`)."""

    def __init__(self, connection: socket.socket, sockets: list[socket.socket], state: bytes) -> None:
        self._connection = connection
        self.sockets = sockets
        self.state = state

    async def release(self) -> None:
        """Make the predecessor accept no more connections and end; return once it accepts none. Raises
        WarmrouteError when it does not reply.
        """
        loop = asyncio.get_running_loop()
        with self._connection:
            try:
                async with asyncio.timeout(RELEASE_TIMEOUT_S):
                    await loop.sock_sendall(self._connection, RELEASE)
                    answer = await loop.sock_recv(self._connection, len(RELEASED))
            except (OSError, TimeoutError) as error:
                raise WarmrouteError(f"--take-over: the running router did not let go: {error!r}") from error
        if answer != RELEASED:
            raise WarmrouteError("--take-over: the running router ended or was taken over by another process")

    def leave(self) -> None:
        """Let the predecessor continue."""
        self._connection.close()


def find_predecessor(host: str, port: int) -> Predecessor | None:
    """Return the router of this user, or of root, that runs at this address; None if no router there offers its
    sockets. Raises WarmrouteError when it belongs to another user or does not reply as expected.
    """
    if sys.platform != "linux":
        raise WarmrouteError("--take-over: needs Linux")
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(ANSWER_TIMEOUT_S)
    try:
        connection.connect(_name(host, port))
    except ConnectionRefusedError:
        connection.close()
        return None
    if not _is_trusted(connection):
        connection.close()
        raise WarmrouteError(f"--take-over: the router on port {port} belongs to another user")
    try:
        answer, descriptors, _, _ = socket.recv_fds(connection, len(GREETING), MOST_SOCKETS)
        state = _receive(connection, int.from_bytes(_receive(connection, LENGTH_BYTES))) if answer == GREETING else b""
    except OSError as error:
        connection.close()
        raise WarmrouteError(f"--take-over: the router on port {port} did not answer: {error}") from error
    sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
    if answer != GREETING or not sockets:
        connection.close()
        raise WarmrouteError(f"--take-over: the router on port {port} gives no sockets to this version")
    for one in sockets:
        one.set_inheritable(False)
        one.setblocking(False)
    connection.setblocking(False)
    return Predecessor(connection, sockets, state)


def _receive(connection: socket.socket, size: int) -> bytes:
    """Return the next `size` bytes. Raises OSError."""
    data = b""
    while len(data) < size:
        if not (piece := connection.recv(size - len(data))):
            raise ConnectionError("it ended")
        data += piece
    return data


def _name(host: str, port: int) -> str:
    return f"\0warmroute/{host}:{port}"


def _is_trusted(connection: socket.socket) -> bool:
    """Return whether the other end is a process of this user, or of root."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return struct.unpack("3i", credentials)[1] in (os.geteuid(), 0)
