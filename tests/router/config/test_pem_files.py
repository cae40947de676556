"""Trust in servers, by CAs and by a server's own certificate. Unusable files are in the table of mistakes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest

from router.backends.failure import UNTRUSTED
from router.lab.loadgen.calibration import EndpointUnavailable, find_first_model
from router.operate.doctor.clients import HttpClients
from router.operate.doctor.router_answers import scrape
from router.operate.doctor.subject import MetricsAddress, MetricsFault
from router.picker.credentials import _context_of_pair, make_self_signed

BODY = json.dumps({"data": [{"id": "m"}]}).encode()


class Server(NamedTuple):
    port: int
    cert_file: str
    key_file: str


async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b" % (len(BODY), BODY))
    await writer.drain()
    writer.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    """An HTTPS server on 127.0.0.1 whose certificate is its own, for `localhost`."""
    key, certificate = make_self_signed(time.time())
    (tmp_path / "cert.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    running = await asyncio.start_server(reply, "127.0.0.1", 0, ssl=_context_of_pair(key, certificate))
    yield Server(running.sockets[0].getsockname()[1], str(tmp_path / "cert.pem"), str(tmp_path / "key.pem"))
    running.close()


async def test_a_load_trusts_what_it_is_given(server: Server) -> None:
    url = f"https://localhost:{server.port}"
    with pytest.raises(EndpointUnavailable, match=f"{UNTRUSTED}: self-signed certificate"):
        await find_first_model(url, None)
    assert await find_first_model(url, None, server.cert_file) == "m"


async def test_the_doctor_trusts_the_certificate_of_the_configuration(server: Server) -> None:
    admin = "http://127.0.0.1:8001"
    clients = HttpClients(5.0)
    address = MetricsAddress(server.port, "https", server.cert_file)
    assert await scrape(clients, admin, address) == BODY.decode()
    _, other = make_self_signed(time.time())
    renewed = Path(server.cert_file).with_name("renewed.pem")
    await asyncio.to_thread(renewed.write_bytes, other)  # the router still has the certificate from before
    fault = await scrape(HttpClients(5.0), admin, address._replace(cert_file=str(renewed)))
    assert isinstance(fault, MetricsFault)
    assert fault.what == "the certificate of its metrics page is not trusted: self-signed certificate"
    await clients.close()
