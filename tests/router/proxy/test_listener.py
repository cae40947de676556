"""Starting and stopping: ports, certificates, grace."""

from __future__ import annotations

import asyncio
import errno
import select
import socket
import ssl
from contextlib import suppress
from typing import Any

import pytest

from router.config.sections.listeners import ListenConfig, TlsConfig
from router.errors import ConfigError
from router.proxy.call import ClientDisconnected
from router.proxy.client_exchange import ClientExchange
from router.proxy.listener import HttpListener, configure_server, connection_capacity
from router.proxy.listening_sockets import ListeningSockets, SocketShare
from router.tenants.fair_share import Shortage
from tests.patience import PATIENCE_S
from tests.router.proxy.connections import BareHandler


class Slow(BareHandler):
    """Answers on demand."""

    def __init__(self) -> None:
        super().__init__()
        self.begun = asyncio.Event()
        self.proceed = asyncio.Event()
        self.gone = False

    async def answer(self, call: ClientExchange) -> None:
        try:
            with call:
                call.start(200, [])
                call.write(b"1")
                self.begun.set()
                await self.proceed.wait()
                call.finish(b"2")
        except ClientDisconnected:
            self.gone = True


async def started(app: Any, connections: int = 100, handshake_s: float = 10.0, **listen: Any) -> HttpListener:
    where = ListenConfig(host="127.0.0.1", port=0, **listen)
    listener = HttpListener(configure_server(app, where, connections=connections), handshake_s)
    await listener.start()
    return listener


async def ask(listener: HttpListener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"GET / HTTP/1.1\r\nHost: r\r\n\r\n")
    return reader, writer


async def test_the_bound_port_is_known():
    listener = await started(Slow())
    assert listener.port > 0
    await listener.stop(0)
    await listener.stop(0)


async def test_a_port_in_use_is_said_plainly():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        listener = HttpListener(configure_server(Slow(), ListenConfig(host="127.0.0.1", port=port)))
        with pytest.raises(ConfigError, match=f"port {port} is in use on 127.0.0.1"):
            await listener.start()


async def test_an_address_of_another_machine_is_said_plainly():
    listener = HttpListener(configure_server(Slow(), ListenConfig(host="192.0.2.1", port=0)))
    with pytest.raises(ConfigError, match=r"this machine does not have the address 192"):
        await listener.start()


def test_certificates_that_cannot_be_used_are_said_plainly(tmp_path):
    tls = TlsConfig(cert_file=str(tmp_path / "none.pem"), key_file=str(tmp_path / "none.key"))
    with pytest.raises(ConfigError, match=r"cert_file: .*none\.pem cannot be read: no such file"):
        configure_server(Slow(), ListenConfig(tls=tls))


async def test_stop_lets_running_answers_end_and_closes_idle_connections():
    app = Slow()
    listener = await started(app)
    reader, writer = await ask(listener)
    idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", listener.port)
    await app.begun.wait()
    stopping = asyncio.ensure_future(listener.stop(5))
    assert await idle_reader.read() == b""
    with pytest.raises(OSError):
        await asyncio.open_connection("127.0.0.1", listener.port)
    assert not stopping.done()
    app.proceed.set()
    async with asyncio.timeout(PATIENCE_S):
        answer = await reader.read()
        await stopping
    assert answer.endswith(b"1\r\n1\r\n1\r\n2\r\n0\r\n\r\n")
    writer.close()
    idle_writer.close()


async def test_stop_cuts_what_outlives_the_grace():
    app = Slow()
    listener = await started(app)
    reader, writer = await ask(listener)
    await app.begun.wait()
    async with asyncio.timeout(PATIENCE_S):
        await listener.stop(0.05)
    assert app.gone
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readuntil(b"0\r\n\r\n")
    writer.close()


async def test_two_listeners_share_a_loop():
    first, second = await started(Slow()), await started(Slow())
    assert first.port != second.port
    await first.stop(0)
    await second.stop(0)


# a port that several processes share


class Greeting(BareHandler):
    """Answers at once."""

    async def answer(self, call: ClientExchange) -> None:
        call.answer(200, [], b"hello")


async def test_the_sockets_of_a_process_that_does_not_accept_are_served():
    listener = HttpListener(
        configure_server(Greeting(), ListenConfig(host="127.0.0.1", port=0)), share=SocketShare(ListeningSockets(), 2)
    )
    await listener.start()
    asking = [asyncio.create_task(answered(listener)) for _ in range(40)]  # all to one of both: once in 2**39
    while not any(task.done() for task in asking):  # noqa: ASYNC110
        await asyncio.sleep(0)
    (other,) = listener.sockets_of(1)
    waits = select.poll()
    waits.register(other, select.POLLIN)
    assert waits.poll(1000)
    assert not all(task.done() for task in asking)
    listener.serve_for(1, True)
    async with asyncio.timeout(PATIENCE_S):
        assert set(await asyncio.gather(*asking)) == {b"HTTP/1.1 200 OK\r\n"}
    await listener.stop(0)


async def answered(listener: HttpListener) -> bytes:
    reader, writer = await ask(listener)
    line = await reader.readline()
    writer.close()
    return line


# the last answers


async def test_a_retired_connection_ends_with_its_next_answer():
    listener = await started(Greeting())
    reader, writer = await ask(listener)
    assert b"connection: close" not in await reader.readuntil(b"hello")
    listener.retire(60.0)
    writer.write(b"GET / HTTP/1.1\r\nHost: r\r\n\r\n")
    assert b"connection: close" in await reader.read()
    writer.close()
    reader, writer = await ask(listener)  # one that comes later too
    assert b"connection: close" in await reader.read()
    writer.close()
    assert listener.connections == 0
    await listener.stop(0)


async def test_an_answer_that_has_begun_is_not_the_last_of_a_retired_connection():
    app = Slow()
    listener = await started(app)
    reader, writer = await ask(listener)
    await app.begun.wait()
    listener.retire(60.0)
    app.proceed.set()
    await reader.readuntil(b"0\r\n\r\n")
    writer.write(b"GET / HTTP/1.1\r\nHost: r\r\n\r\n")
    assert b"connection: close" in await reader.read()
    writer.close()
    await listener.stop(0)


async def test_a_retired_connection_that_is_idle_closes():
    listener = await started(Greeting())
    idle, fresh = await ask(listener), await asyncio.open_connection("127.0.0.1", listener.port)
    await idle[0].readuntil(b"hello")
    listener.retire(0.05)
    async with asyncio.timeout(PATIENCE_S):
        assert [await reader.read() for reader, _ in (idle, fresh)] == [b"", b""]
    for _, writer in (idle, fresh):
        writer.close()
    await listener.stop(0)


async def test_open_connections_go_on_after_stop_accepting():
    app = Slow()
    listener = await started(app)
    reader, writer = await ask(listener)
    await app.begun.wait()
    listener.stop_accepting()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", listener.port)
    app.proceed.set()
    assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"HTTP/1.1 200")
    writer.close()
    await listener.stop(1.0)


async def test_a_cut_is_seen_even_where_an_end_would_look_like_one():
    """An answer without a length or chunks ends with its connection: only a reset says that it is not whole."""
    app = Slow()
    listener = await started(app)
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"GET / HTTP/1.0\r\n\r\n")
    await app.begun.wait()
    await reader.readuntil(b"\r\n\r\n1")
    await listener.stop(0)
    with pytest.raises(ConnectionResetError):
        await reader.read()
    writer.close()


# who gets a connection


def test_the_capacity_follows_from_the_files_and_the_requests():
    assert connection_capacity(concurrent=2048, open_files=1_000_000) == 16_384
    assert connection_capacity(concurrent=2048, open_files=1024) == 341
    assert connection_capacity(concurrent=1, open_files=1) == 1


async def opened(listener: HttpListener, source: str, count: int) -> list[tuple[Any, Any]]:
    """That many connections from `source`, and of each whether it is served is known."""
    return [
        await asyncio.open_connection("127.0.0.1", listener.port, local_addr=(source, 0), limit=1) for _ in range(count)
    ]


async def served(pairs: list[tuple[Any, Any]]) -> int:
    """How many of these get an answer."""

    async def is_served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        with suppress(ConnectionError):
            writer.write(b"GET / HTTP/1.1\r\nHost: r\r\n\r\n")
            async with asyncio.timeout(PATIENCE_S):
                return await reader.read(1) != b""
        return False

    return sum(await asyncio.gather(*(is_served(*pair) for pair in pairs)))


async def test_a_client_has_its_share_of_the_connections_and_another_finds_room(caplog):
    listener = await started(Slow(), connections=10)
    many = await opened(listener, "127.0.0.2", 20)
    assert await served(many) == 8
    others = await opened(listener, "127.0.0.3", 1)
    assert await served(others) == 1
    assert (listener.connections, dict(listener.refused)) == (9, {Shortage.SHARE.value: 12})
    assert len(caplog.records) == 1
    assert "127.0.0.2 is refused: its 8 are its share of 10" in caplog.text
    for _, writer in many:
        writer.transport.abort()
    async with asyncio.timeout(PATIENCE_S):
        while listener.connections > 1:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    again = await opened(listener, "127.0.0.2", 1)
    assert await served(again) == 1
    for _, writer in (*others, *again):
        writer.transport.abort()
    await listener.stop(0)


async def test_no_more_than_the_capacity_are_connected():
    listener = await started(Slow(), connections=3)
    pairs = [pair for last in range(2, 7) for pair in await opened(listener, f"127.0.0.{last}", 1)]
    assert await served(pairs) == 3
    assert listener.refused == {Shortage.TOTAL.value: 2}
    for _, writer in pairs:
        writer.transport.abort()
    await listener.stop(0)


async def test_connections_wait_while_the_system_has_no_descriptor(monkeypatch, caplog):
    listener = await started(Slow())
    lacking = True

    def accept(listening: socket.socket) -> Any:
        if lacking:
            raise OSError(errno.EMFILE, "Too many open files")
        return accepted(listening)

    accepted = socket.socket.accept
    monkeypatch.setattr(socket.socket, "accept", accept)
    monkeypatch.setattr("router.proxy.acceptor.ACCEPT_RETRY_S", 0.01)
    pairs = await opened(listener, "127.0.0.1", 3)
    async with asyncio.timeout(PATIENCE_S):
        while not caplog.records:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)
    assert len(caplog.records) == 1
    lacking = False
    assert await served(pairs) == 3
    for _, writer in pairs:
        writer.transport.abort()
    await listener.stop(0)


# TLS


async def test_a_handshake_that_fails_or_takes_too_long_costs_a_connection_and_nothing_else(certificate):
    tls = TlsConfig(cert_file=certificate.cert_file, key_file=certificate.key_file)
    listener = await started(Slow(), handshake_s=0.2, tls=tls)
    (garbage, sending), (silent, silently) = await opened(listener, "127.0.0.1", 2)
    sending.write(b"\x00 is no handshake \r\n\r\n")
    with suppress(ConnectionError):
        await asyncio.wait_for(garbage.read(), 5)
    with suppress(ConnectionError):
        assert await asyncio.wait_for(silent.read(), 5) == b""
    async with asyncio.timeout(PATIENCE_S):
        while listener.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    assert listener.refused == {"handshake": 2}
    trusting = ssl.create_default_context(cafile=certificate.cert_file)
    pair = await asyncio.open_connection("127.0.0.1", listener.port, ssl=trusting, server_hostname="localhost")
    assert await served([pair]) == 1
    for _, writer in ((garbage, sending), (silent, silently), pair):
        writer.transport.abort()
    await listener.stop(0)


@pytest.mark.parametrize("body", [b"", b"x" * 300_000])
async def test_a_request_without_tls_is_told_to_use_it(certificate, body):
    listener = await started(Slow(), tls=TlsConfig(cert_file=certificate.cert_file, key_file=certificate.key_file))
    ((reader, writer),) = await opened(listener, "127.0.0.1", 1)
    writer.write(b"POST / HTTP/1.1\r\nHost: r\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    answer = await asyncio.wait_for(reader.read(), PATIENCE_S)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"this port serves HTTPS: the URL begins with https://" in answer
    assert listener.refused == {"handshake": 1}
    writer.close()
    await listener.stop(0)


async def test_a_handshake_in_progress_does_not_hold_up_the_stop(certificate):
    tls = TlsConfig(cert_file=certificate.cert_file, key_file=certificate.key_file)
    listener = await started(Slow(), tls=tls)
    ((reader, writer),) = await opened(listener, "127.0.0.1", 1)
    async with asyncio.timeout(PATIENCE_S):
        while not listener.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        await listener.stop(2 * PATIENCE_S)
    assert await asyncio.wait_for(reader.read(), PATIENCE_S) == b""
    writer.close()
