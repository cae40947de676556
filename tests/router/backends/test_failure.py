"""What is said of a server that cannot be reached, whichever library tried."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator

import httpx
import pytest

from router.backends.failure import describe_failure
from router.picker.credentials import server_context

Urls = dict[str, str]


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)
    writer.write(b"220 ready\r\n")
    writer.close()


async def keep_quiet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@pytest.fixture
async def urls() -> AsyncIterator[Urls]:
    """A server of each kind."""
    tls = server_context("self-signed", time.time())
    plain = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    encrypted = await asyncio.start_server(hang_up, "127.0.0.1", 0, ssl=tls)
    silent = await asyncio.start_server(keep_quiet, "127.0.0.1", 0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        at = {kind: server.sockets[0].getsockname()[1] for kind, server in (("plain", plain), ("silent", silent))}
        yield {
            "refused": f"http://127.0.0.1:{unused.getsockname()[1]}",
            "unknown": "http://no.such.host.invalid",
            "plain": f"https://127.0.0.1:{at['plain']}",
            "untrusted": f"https://127.0.0.1:{encrypted.sockets[0].getsockname()[1]}",
            "silent": f"http://127.0.0.1:{at['silent']}",
        }
    for server in (plain, encrypted, silent):
        server.close()


async def test_a_failure_is_named_by_its_cause(urls: Urls) -> None:
    found = {}
    for kind, url in urls.items():
        async with httpx.AsyncClient(timeout=httpx.Timeout(5.0, read=0.1), trust_env=False) as client:
            with pytest.raises(httpx.HTTPError) as failed:
                await client.get(url)
        found[kind] = describe_failure(failed.value)
    assert found.pop("unknown").startswith("unknown host: ")
    assert found == {
        "refused": "connection refused",
        "plain": "it does not speak TLS",
        "untrusted": "its certificate is not trusted: self-signed certificate",
        "silent": "no answer in time",
    }


async def test_a_failure_without_a_library_around_it(urls: Urls) -> None:
    port = int(urls["plain"].rpartition(":")[2])
    with pytest.raises(ssl.SSLError) as failed:
        await asyncio.open_connection("127.0.0.1", port, ssl=ssl.create_default_context())
    assert describe_failure(failed.value) == "it does not speak TLS"
    assert describe_failure(ValueError("odd")) == "odd"
    assert describe_failure(ValueError()) == "ValueError"
