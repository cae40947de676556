"""Sockets that are bound, and those that were bound by others; real ones."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from router.errors import ConfigError
from router.lab.local_stack.preflight import free_ports
from router.proxy.listening_sockets import ListeningSockets, check_port_free, take_passed_sockets

HERE = "127.0.0.1"


@pytest.fixture
def held() -> Iterator[list[socket.socket]]:
    """Sockets that listen on two ports, which no connection of another test has on another address."""
    sockets = [socket.create_server((HERE, port)) for port in free_ports(2)]
    yield sockets
    for one in sockets:
        one.close()


def port_of(one: socket.socket) -> int:
    return int(one.getsockname()[1])


async def test_processes_get_sockets_of_one_port() -> None:
    sockets = ListeningSockets()
    groups = await sockets.open(HERE, 0, copies=3)
    assert len({port_of(one) for group in groups for one in group}) == 1
    assert len({one.fileno() for group in groups for one in group}) == 3
    assert sockets.all == [one for group in groups for one in group]
    with pytest.raises(ConfigError, match="is in use"):
        await ListeningSockets().open(HERE, port_of(groups[0][0]), copies=3)  # not of another router
    close(groups)
    assert sockets.all == []


def close(groups: list[list[socket.socket]]) -> None:
    for group in groups:
        for one in group:
            one.close()


async def test_a_socket_that_was_handed_over_is_taken_by_its_address(held) -> None:
    sockets = ListeningSockets(held)
    assert sockets.handed_over
    assert await sockets.open(HERE, port_of(held[1])) == [[held[1]]]
    assert sockets.unused() == [f"{HERE}:{port_of(held[0])}"]
    own = await sockets.open(HERE, 0)
    assert own[0][0] not in held
    assert set(sockets.all) == {held[1], own[0][0]}
    close(own)


async def test_a_socket_of_another_address_is_not_taken(held) -> None:
    sockets = ListeningSockets(held)
    own = await sockets.open("127.0.0.2", port_of(held[0]))
    assert own[0][0] not in held
    close(own)


async def test_one_socket_for_both_versions_of_ip_serves_all_addresses_of_ip_4() -> None:
    try:
        both = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with both:
        assert await ListeningSockets([both]).open("0.0.0.0", port_of(both)) == [[both]]
        sockets = ListeningSockets([both])
        with pytest.raises(ConfigError, match="in use"):  # it would let in more than 127.0.0.1
            await sockets.open(HERE, port_of(both))


@pytest.mark.parametrize(("sockets", "shared_out"), [(1, [[0], [0]]), (2, [[0], [1]]), (3, [[0, 2], [1]])])
async def test_sockets_of_one_port_are_shared_out(sockets, shared_out) -> None:
    (first,), *others = await ListeningSockets().open(HERE, 0, copies=3)
    handed_over = [first, *(one for (one,) in others)][:sockets]
    groups = await ListeningSockets(handed_over).open(HERE, port_of(first), copies=2)
    assert [[handed_over.index(one) for one in group] for group in groups] == shared_out
    close([[first], *others])


async def test_each_process_gets_sockets_of_every_address(monkeypatch) -> None:
    """As for a name of two addresses: whoever binds the sockets and whoever gets them agree on whose each one is."""
    own, (port,) = HERE, free_ports(1)

    async def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (address, port)) for address in (own, "127.0.0.2")]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    bound = ListeningSockets()
    groups = await bound.open(own, port, copies=3)
    assert [[one.getsockname()[0] for one in group] for group in groups] == [[own, "127.0.0.2"]] * 3
    taken = await ListeningSockets([one.dup() for one in bound.all]).open(own, port, copies=3)
    assert [[inode(one) for one in group] for group in taken] == [[inode(one) for one in group] for group in groups]
    close([*groups, *taken])


def inode(one: socket.socket) -> int:
    """What all copies of a socket have in common."""
    return os.fstat(one.fileno()).st_ino


async def test_a_waiting_connection_survives_where_another_process_has_the_socket() -> None:
    """And is reset where not, although somebody else listens on the port: why sockets are handed over."""
    (first,), (second,) = await ListeningSockets().open(HERE, 0, copies=2)
    copy = first.dup()  # as another process has it
    clients = [socket.create_connection((HERE, port_of(first))) for _ in range(40)]  # all to one: once in 2**39
    first.close()
    assert [reset(client) for client in clients] == [False] * 40
    copy.close()
    assert 0 < sum(reset(client) for client in clients) < 40
    second.close()
    for client in clients:
        client.close()


def reset(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        client.recv(1)
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    raise AssertionError("nobody answers")


def test_what_is_passed_to_another_process_is_left_alone() -> None:
    environment = {"LISTEN_PID": "1", "LISTEN_FDS": "1", "LISTEN_FDNAMES": "http", "HOME": "/"}
    assert take_passed_sockets(environment, pid=2) == []
    assert environment == {"HOME": "/"}
    assert take_passed_sockets({}, pid=2) == []


async def test_a_port_is_not_free_while_somebody_shares_it() -> None:
    (first,), (second,) = await ListeningSockets().open(HERE, 0, copies=2)
    with closing(first), closing(second), pytest.raises(ConfigError, match=f"port {port_of(first)} is in use"):
        check_port_free(HERE, port_of(first))
    check_port_free(HERE, 0)
