"""Starting and stopping: ports, certificates, grace."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from router.config.sections.listeners import ListenConfig, TlsConfig
from router.errors import ConfigError
from router.proxy.call import ClientDisconnected
from router.proxy.client_exchange import ClientExchange
from router.proxy.listener import HttpListener, check_port_free, configure_server


class Slow:
    """Answers on demand."""

    def __init__(self) -> None:
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


async def started(app: Any) -> HttpListener:
    listener = HttpListener(configure_server(app, ListenConfig(host="127.0.0.1", port=0)))
    await listener.start()
    return listener


async def ask(listener: HttpListener) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
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
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1"):
        await listener.start()


def test_certificates_that_cannot_be_used_are_said_plainly(tmp_path):
    tls = TlsConfig(cert_file=str(tmp_path / "none.pem"), key_file=str(tmp_path / "none.key"))
    with pytest.raises(ConfigError, match=r"listen\.tls"):
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
    async with asyncio.timeout(5):
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
    async with asyncio.timeout(5):
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


# a port that several share


async def sharing(port: int = 0) -> HttpListener:
    listener = HttpListener(configure_server(Slow(), ListenConfig(host="127.0.0.1", port=port)), shared=True)
    await listener.start()
    return listener


async def test_two_listeners_may_share_a_port_if_both_say_so():
    first = await sharing()
    second = await sharing(first.port)
    assert second.port == first.port
    alone = HttpListener(configure_server(Slow(), ListenConfig(host="127.0.0.1", port=first.port)))
    with pytest.raises(ConfigError, match=f"port {first.port} is in use"):
        await alone.start()
    await first.stop(0)
    await second.stop(0)


async def test_a_port_is_not_free_while_somebody_shares_it():
    listener = await sharing()
    with pytest.raises(ConfigError, match=f"port {listener.port} is in use on 127.0.0.1"):
        check_port_free("127.0.0.1", listener.port)
    await listener.stop(0)
    check_port_free("127.0.0.1", listener.port)
    check_port_free("127.0.0.1", 0)


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
