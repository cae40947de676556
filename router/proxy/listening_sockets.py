"""The listening sockets of a router: handed over by their previous owner, else bound here.

Closing a socket resets every connection that waits in its backlog, even where another process listens on the same
port (Linux: each socket with SO_REUSEPORT has a backlog of its own; `net.ipv4.tcp_migrate_req` is off by default).
So a router that replaces another takes over its predecessor's sockets instead of opening its own: the backlog
belongs to the socket, whichever process accepts from it. The service manager hands sockets over in the same way
(systemd, `LISTEN_FDS`).
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import defaultdict
from collections.abc import Iterable, MutableMapping
from itertools import chain
from typing import Any, NamedTuple

from router.errors import ConfigError

BACKLOG = 2048
FIRST_FD = 3  # of the sockets that a service manager passes

SocketAddress = tuple[socket.AddressFamily, Any]


class ListeningSockets:
    """All listening sockets of one process. `handed_over`: sockets that are bound already. Each is used for the
    configured address that it is bound to, and this object owns them.
    """

    def __init__(self, handed_over: Iterable[socket.socket] = ()) -> None:
        self._unused = list(handed_over)
        self._used: list[socket.socket] = []
        self.handed_over = bool(self._unused)

    @property
    def all(self) -> list[socket.socket]:
        """The sockets that are in use and not closed."""
        return [listening for listening in self._used if listening.fileno() >= 0]

    async def open(self, host: str, port: int, copies: int = 1) -> list[list[socket.socket]]:
        """Return the sockets for `host` and `port`, for `copies` processes: one list for each process, with a
        socket for each address of `host`. The lists are the same in every process that receives the same sockets in
        the same order. The kernel assigns each connection to one of the processes; where fewer sockets were handed
        over than there are processes, some share one. Raises ConfigError when an address cannot be bound.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            addresses: list[SocketAddress] = [(family, address) for family, _, _, _, address in found]
            if taken := self._take(addresses):
                return _share_out(taken, copies)
            if copies > 1:
                check_port_free(host, port)
            return self._bind(addresses, copies)
        except OSError as error:
            raise ConfigError(_bind_error(error, host, port)) from error

    def _take(self, addresses: list[SocketAddress]) -> list[socket.socket]:
        taken = [one for one in self._unused if any(_is_bound_to(one, address) for _, address in addresses)]
        self._unused = [one for one in self._unused if one not in taken]
        self._used += taken
        return taken

    def _bind(self, addresses: list[SocketAddress], copies: int) -> list[list[socket.socket]]:
        groups: list[list[socket.socket]] = []
        try:
            for _ in range(copies):
                group: list[socket.socket] = []
                groups.append(group)
                for family, address in addresses:
                    listening = socket.create_server(address, family=family, backlog=BACKLOG, reuse_port=copies > 1)
                    listening.setblocking(False)
                    group.append(listening)
                addresses = [(one.family, one.getsockname()) for one in group]  # the port that the system chose for 0
        except OSError:
            for listening in chain(*groups):
                listening.close()
            raise
        self._used += chain(*groups)
        return groups

    def unused(self) -> list[str]:
        """Return the addresses, host:port, of the sockets handed over that no configured listener uses."""
        return [_describe(*listening.getsockname()[:2]) for listening in self._unused]


class SocketShare(NamedTuple):
    """The sockets of `processes` processes that serve the same addresses; this process is the one with `number`."""

    sockets: ListeningSockets
    processes: int = 1
    number: int = 0


def take_passed_sockets(environment: MutableMapping[str, str], pid: int) -> list[socket.socket]:
    """Return the sockets that a service manager passed to the process `pid`, and remove the variables that announce
    them from `environment`, because they are not for child processes: sd_listen_fds(3). Raises ConfigError for
    anything but a TCP socket that listens.
    """
    names = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES")
    owner, count, _ = (environment.pop(name, "") for name in names)
    if owner != str(pid):
        return []
    passed = [socket.socket(fileno=FIRST_FD + n) for n in range(int(count))]
    for one in passed:
        if one.type != socket.SOCK_STREAM or one.family not in (socket.AF_INET, socket.AF_INET6):
            raise ConfigError(f"the service manager passed a socket that is not of TCP: {one.getsockname()!r}")
        if not one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConfigError(f"the service manager passed a connection: the socket unit needs Accept=no: {one}")
        one.set_inheritable(False)
        one.setblocking(False)
    return passed


def check_port_free(host: str, port: int) -> None:
    """Raise `ConfigError` when another process listens on the port, even one that would share the port."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise ConfigError(_bind_error(error, host, port)) from error


def _share_out(sockets: list[socket.socket], copies: int) -> list[list[socket.socket]]:
    """Return one list for each of the `copies`, each with a socket of every address. The lists depend only on the
    order of `sockets`, so that all processes that received the same sockets agree on them.
    """
    groups: list[list[socket.socket]] = [[] for _ in range(copies)]
    by_address = defaultdict(list)
    for one in sockets:
        by_address[one.getsockname()].append(one)
    for same in by_address.values():
        for n in range(max(copies, len(same))):
            groups[n % copies].append(same[n % len(same)])
    return groups


def _is_bound_to(listening: socket.socket, address: tuple[Any, ...]) -> bool:
    """Return whether `listening` receives what is sent to `address`. One socket of the service manager may serve
    both versions of IP.
    """
    (host, port), (bound, bound_port) = address[:2], listening.getsockname()[:2]
    both = bound == "::" and host == "0.0.0.0" and not listening.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    return port == bound_port and (host == bound or both)


def _describe(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _bind_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        user = f"`sudo ss -ltnp 'sport = :{port}'` names the process, perhaps a running router"
        return f"port {port} is in use on {host}: choose another port, or stop what uses it ({user})"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have the address {host} (for port {port}): choose one of `ip addr`"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} may not be used by this user: choose one above 1023"
    return f"cannot listen on {host}:{port}: {error.strerror or error}"
