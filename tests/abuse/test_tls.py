"""TLS: bad handshakes, slow ones, many at once, and a certificate that is renewed while the router runs."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.abuse.raw import BENIGN, HEALTH, HOSTILE, RawClient, cut_off, dial, dialled
from tests.e2e.conftest import Json
from tests.fakes.engines import engine, eventually

HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(20)  # the begin of a ClientHello
BAD_HANDSHAKES = {
    "plain HTTP": HEALTH,
    "nothing": b"",
    "half a hello": HELLO,
    "a hello and garbage": HELLO + b"\xff" * 300,
    "a record that is too long": b"\x16\x03\x01\xff\xff" + b"x" * 5000,
    "an alert": b"\x15\x03\x01\x00\x02\x02\x28",
    "SSLv2": b"\x80\x2e\x01\x00\x02" + bytes(41),
    "application data": b"\x17\x03\x03\x00\x20" + bytes(32),
}


class Pair:
    """A certificate for localhost and its key, under names that stay."""

    def __init__(self, folder: Path) -> None:
        self.cert, self.key = folder / "cert.pem", folder / "key.pem"
        self.serial = 0

    def config(self) -> Json:
        return {"tls": {"cert_file": str(self.cert), "key_file": str(self.key)}}

    def renew(self, *, with_its_key: bool = True) -> None:
        """Put a new certificate in place, as tools do: written beside it, then renamed."""
        self.serial += 1
        new_cert, new_key = self.cert.with_suffix(".new"), self.key.with_suffix(".new")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        command += ["-set_serial", str(self.serial), "-keyout", str(new_key), "-out", str(new_cert)]
        subprocess.run(command, check=True, capture_output=True)
        new_cert.rename(self.cert)
        if with_its_key:
            new_key.rename(self.key)

    def trusting(self) -> ssl.SSLContext:
        """A client that trusts whatever certificate is there now."""
        return ssl.create_default_context(cafile=str(self.cert))


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = Pair(tmp_path)
    made.renew()
    return made


async def secure(url: str, context: ssl.SSLContext, source: str = BENIGN) -> RawClient:
    return await dial(url, source, ssl=context, server_hostname="localhost")


async def healthy(url: str, context: ssl.SSLContext) -> bool:
    """Whether a client that has `context` gets an answer; false where it does not trust the certificate."""
    try:
        client = await secure(url, context)
    except ssl.SSLCertVerificationError:
        return False
    client.send(HEALTH)
    status, _ = await client.answer()
    client.writer.transport.abort()
    return status == 200


async def test_a_bad_handshake_costs_nobody_else_anything(router, pair, measured) -> None:
    """40 of each kind, half of them given up at once; connections that were open go on, new ones come."""
    async with engine() as fake, router([fake], listen=pair.config(), wait=False) as r:
        context, refused = pair.trusting(), r.app.listener.refused
        before = await secure(r.url, context)
        for what, said in BAD_HANDSHAKES.items():
            refused.clear()
            async with dialled(r.url, 40) as clients:
                for number, client in enumerate(clients):
                    client.send(said)
                    if number % 2:
                        client.writer.transport.abort()
                assert await healthy(r.url, context), what
            await eventually(lambda: r.app.listener.connections == 1)
            measured(f"handshakes ({what}) that were not seen to fail", 40 - refused["handshake"], 0, "of 40")
        before.send(HEALTH)
        assert (await before.answer())[0] == 200
        before.writer.transport.abort()


async def test_slow_handshakes_take_the_share_of_their_client(router, pair, measured) -> None:
    """It opens connections and does not speak TLS: they count from the moment they are accepted."""
    config = {"listen": pair.config(), "limits": {"concurrent": 5}}  # 40 connections
    async with engine() as fake, router([fake], wait=False, **config) as r:
        async with dialled(r.url, 60) as clients:
            for client in clients:
                client.send(HELLO)
            await eventually(lambda: r.app.listener.refused["share"] == 28)
            measured("connections that slow handshakes take", r.app.listener.connections, 32, "of 40")
            assert all([await healthy(r.url, pair.trusting()) for _ in range(3)])
        await eventually(lambda: r.app.listener.connections == 0)


async def test_a_certificate_is_renewed_without_a_restart(router, pair, monkeypatch) -> None:
    """The old connection goes on with the old one; a certificate whose key is not here yet changes nothing."""
    monkeypatch.setattr("router.proxy.certificates.POLL_S", 0.02)
    async with engine() as fake, router([fake], listen=pair.config(), wait=False) as r:
        before = await secure(r.url, old := pair.trusting())
        pair.renew(with_its_key=False)
        for _ in range(5):
            assert await healthy(r.url, old)
            await asyncio.sleep(0.02)
        pair.renew()
        async with asyncio.timeout(5):
            while not await healthy(r.url, pair.trusting()):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert not await healthy(r.url, old)
        before.send(HEALTH)
        assert (await before.answer())[0] == 200
        before.writer.transport.abort()


@pytest.mark.abuse
async def test_a_thousand_handshakes_at_once(router_process, fleet_config, pair, measured) -> None:
    """Valid ones, all from one address, beside a connection that is open."""
    context = pair.trusting()
    async with engine() as fake, router_process(fleet_config([fake], listen=pair.config())) as r, cut_off() as open_:
        open_.append(warm := await secure(r.url, context))
        before = r.rss_bytes
        opening = [asyncio.create_task(secure(r.url, context, HOSTILE)) for _ in range(1000)]
        while not all(task.done() for task in opening):
            warm.send(HEALTH)
            assert (await warm.answer())[0] == 200
        found = await asyncio.gather(*opening, return_exceptions=True)
        open_ += [one for one in found if isinstance(one, RawClient)]
        measured("handshakes that failed, of 1,000 at once", 1001 - len(open_), 0, "")
        measured("memory of a TLS connection", (r.rss_bytes - before) / 1000 / 1024, 150, "KiB")
