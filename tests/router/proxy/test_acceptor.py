"""Who accepts the connections of a port that processes share: real sockets, each process an acceptor of this one."""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable

from router.proxy.acceptor import Acceptor
from router.proxy.listening_sockets import ListeningSockets, SocketShare
from tests.patience import PATIENCE_S

HERE = "127.0.0.1"
CLIENTS = 40  # all to one of two sockets: once in 2**39


class Process:
    """One of `count` that share a port: its acceptor, and the connections that it has accepted."""

    def __init__(self, sockets: ListeningSockets, number: int, count: int = 2) -> None:
        self.accepted: list[socket.socket] = []
        self.acceptor = Acceptor(SocketShare(sockets, count, number), self._admit)

    def _admit(self, accepted: socket.socket, host: str) -> None:
        assert host == HERE
        self.accepted.append(accepted)


async def two_processes() -> tuple[int, Process, Process]:
    """The port of two processes; the second has copies of the sockets that the first has bound. None accepts yet."""
    bound = ListeningSockets()
    first = Process(bound, 0)
    port = await first.acceptor.bind(HERE, 0)
    second = Process(ListeningSockets([one.dup() for one in bound.all]), 1)
    assert await second.acceptor.bind(HERE, port) == port
    return port, first, second


def connect(port: int) -> list[socket.socket]:
    return [socket.create_connection((HERE, port)) for _ in range(CLIENTS)]


async def wait_until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not reached():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


def waits(process: Process, group: int) -> bool:
    """A connection is in the backlog of a group."""
    poll = select.poll()
    for one in process.acceptor.sockets_of(group):
        poll.register(one, select.POLLIN)
    return bool(poll.poll(0))


def close(clients: list[socket.socket], *processes: Process) -> None:
    for process in processes:
        process.acceptor.close()
    for one in (*clients, *(one for process in processes for one in process.accepted)):
        one.close()


async def test_each_process_accepts_from_its_own_sockets() -> None:
    port, first, second = await two_processes()
    first.acceptor.start()
    second.acceptor.start()
    clients = connect(port)
    await wait_until(lambda: len(first.accepted) + len(second.accepted) == CLIENTS)
    assert first.accepted
    assert second.accepted
    close(clients, first, second)


async def test_what_waits_for_a_process_that_does_not_accept_is_accepted_by_another_one() -> None:
    port, first, second = await two_processes()
    first.acceptor.start()
    clients = connect(port)
    await wait_until(lambda: bool(first.accepted) and not waits(first, 0))
    assert waits(first, 1), "they are not its own"
    first.acceptor.serve_for(1, True)
    await wait_until(lambda: len(first.accepted) == CLIENTS)
    close(clients, first, second)


async def test_a_process_that_is_back_has_its_sockets_for_itself() -> None:
    port, first, second = await two_processes()
    first.acceptor.serve_for(1, True)  # before it accepts at all
    first.acceptor.start()
    before = connect(port)
    await wait_until(lambda: len(first.accepted) == CLIENTS)
    first.acceptor.serve_for(1, False)
    after = connect(port)
    await wait_until(lambda: len(first.accepted) > CLIENTS and not waits(first, 0))
    kept = len(first.accepted)
    second.acceptor.start()
    await wait_until(lambda: kept + len(second.accepted) == 2 * CLIENTS)
    assert second.accepted
    assert len(first.accepted) == kept
    close(before + after, first, second)


async def test_a_process_that_ends_leaves_its_backlog_to_the_others() -> None:
    port, first, second = await two_processes()
    clients = connect(port)
    second.acceptor.close()
    first.acceptor.start()
    first.acceptor.serve_for(1, True)
    await wait_until(lambda: len(first.accepted) == CLIENTS)
    close(clients, first)


async def test_one_socket_for_all_is_served_while_one_of_them_is() -> None:
    """A service manager passes one socket, however many processes there are."""
    with socket.create_server((HERE, 0), backlog=CLIENTS) as one:
        one.setblocking(False)
        port = one.getsockname()[1]
        alone = Process(ListeningSockets([one]), 0)
        await alone.acceptor.bind(HERE, port)
        alone.acceptor.start()
        alone.acceptor.serve_for(1, True)
        alone.acceptor.serve_for(1, False)
        clients = connect(port)
        await wait_until(lambda: len(alone.accepted) == CLIENTS)
        close(clients, alone)
        alone.acceptor.serve_for(1, True)  # comes late: nothing is left to accept from
