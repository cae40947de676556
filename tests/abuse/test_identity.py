"""Who a client is: forged tokens, unknown keys without end, hostile issuers, keys files, tenants without number."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest

from router.backends import client_keys
from tests.abuse.conftest import Measured
from tests.abuse.hostile_engine import Answer, HostileEngine, hostile_engine, http
from tests.abuse.raw import BENIGN, CHAT, MB, RawClient, dialled, post
from tests.abuse.watch import loop_probe, peak_bytes
from tests.e2e.conftest import MODEL
from tests.fakes.engines import engine, eventually
from tests.files import replace
from tests.router.tenants.issuer import AUDIENCE, ISSUER, Issuer

PATH = "/v1/completions"
BODY = {"model": MODEL, "prompt": "x", "max_tokens": 1}
STORM = 300
ROUTER_MB = 150  # of a whole router at most: 100 to 110 here, 165 if the compressed set is unpacked
TENANTS, WARM_UP = 2_000, 500
SERIES_OF_TENANTS = 256 * 6 + 10  # `MAX_TENANTS`, each with requests, three kinds of tokens, GPU time and refusals


JWKS = "/jwks.json"


@asynccontextmanager
async def issuer_serving(answer: Answer) -> AsyncIterator[HostileEngine]:
    """Yield a web server with this answer in the place of an issuer's keys."""
    async with hostile_engine() as server:
        server.answers[JWKS] = answer
        yield server


async def drip(writer: asyncio.StreamWriter) -> None:
    """Send the beginning of a key set, and then a byte now and then."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 1048576\r\n\r\n{")
    while True:
        await asyncio.sleep(0.05)
        writer.write(b" ")
        await writer.drain()


def gzipped(megabytes: int) -> bytes:
    pack = zlib.compressobj(wbits=31)
    return b"".join([*(pack.compress(bytes(MB)) for _ in range(megabytes)), pack.flush()])


def trust(keys: HostileEngine) -> dict[str, Any]:
    """The section `clients` that trusts the issuer with these keys."""
    return {"jwt": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_url": keys.url + JWKS}}


async def status_of(client: RawClient, token: str) -> int:
    client.send(post(len(CHAT), CHAT, b"authorization: Bearer " + token.encode()))
    return (await client.answer())[0]


def unsigned(header: dict[str, Any], payload: dict[str, Any], signature: bytes = b"") -> str:
    parts = json.dumps(header).encode(), json.dumps(payload).encode(), signature
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def forged(issuer: Issuer, url: str) -> Iterator[tuple[str, str]]:
    """Yield tokens that no issuer would sign, or that count no more; `url` is a server of the attacker."""
    good = {"iss": ISSUER, "aud": AUDIENCE, "exp": time.time() + 300, "sub": "team"}
    published = base64.urlsafe_b64decode(issuer.jwk()["x"] + "==")
    for algorithm in ("none", "None", "", "HS256", "EdDSA"):
        yield f"unsigned, {algorithm!r}", unsigned({"alg": algorithm, "kid": "k1"}, good)
    yield "HS256 with the public key", jwt.encode(good, published, "HS256", {"kid": "k1"})
    own = Issuer("k1")
    yield "another key", own.token("team")
    yield "a key in the header", jwt.encode(good, own.key, "EdDSA", {"kid": "k1", "jwk": own.jwk()})
    yield "a key elsewhere", jwt.encode(good, own.key, "EdDSA", {"kid": "k1", "jku": url, "x5u": url})
    for kid in (url, "../../../../dev/null", "' OR 1=1 --", "k1\0"):
        yield f"the id {kid!r}", jwt.encode(good, own.key, "EdDSA", {"kid": kid})
    yield "expired", issuer.token("team", lives_s=-60.0)
    yield "not valid yet", issuer.token("team", nbf=time.time() + 60)
    yield "of another issuer", issuer.token("team", iss="https://evil.test")
    yield "for another audience", issuer.token("team", aud="other")
    yield "a name of terminal escapes", issuer.token("\x1b[2J")
    yield "a long name", issuer.token("t" * 1000)
    yield "2,000 claims", issuer.token("team", **{f"c{n}": n for n in range(2_000)})
    yield "deep claims", unsigned({"alg": "EdDSA", "kid": "k1"}, good | {"deep": json.loads("[" * 900 + "]" * 900)})
    yield "a deep header", unsigned({"alg": "EdDSA", "kid": json.loads("[" * 900 + "]" * 900)}, good)


async def test_forged_tokens_are_refused_and_nothing_they_name_is_fetched(router) -> None:
    issuer = Issuer()
    async with (
        engine() as fake,
        issuer_serving(http(issuer.jwks())) as keys,
        issuer_serving(http(issuer.jwks())) as evil,
        router([fake], clients=trust(keys)) as r,
        dialled(r.url, 1) as (client,),
    ):
        await eventually(lambda: r.app.core.client_keys._verifier.ready)
        assert await status_of(client, issuer.token("team")) == 200
        for what, token in forged(issuer, evil.url):
            assert await status_of(client, token) == 401, what
        async with dialled(r.url, 1) as (large,):
            assert await status_of(large, issuer.token("team", filler="x" * 64_000)) == 431
        assert await status_of(client, issuer.token("team")) == 200
        assert not evil.asked


async def test_a_storm_of_unknown_keys_fetches_the_set_once(router, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_keys, "AGAIN_S", 1.0)
    issuer = Issuer()
    async with (
        engine() as fake,
        issuer_serving(http(issuer.jwks())) as keys,
        router([fake], clients=trust(keys)) as r,
        dialled(r.url, 1) as (client,),
    ):
        await eventually(lambda: r.app.core.client_keys._verifier.ready)
        begun = time.monotonic()
        for number in range(STORM):
            assert await status_of(client, Issuer(f"unknown-{number}").token("team")) == 401
        assert len(keys.asked) <= 2 + (time.monotonic() - begun) / client_keys.AGAIN_S
        assert await status_of(client, issuer.token("team")) == 200


HOSTILE: dict[str, Callable[[], Answer]] = {
    "300 MB, compressed": lambda: http(gzipped(300), headers=b"content-encoding: gzip\r\n"),
    "no end": lambda: drip,
    "4,000 keys": lambda: http(Issuer().jwks(*(Issuer(f"k{n}").jwk() for n in range(4_000)))),
    "not JSON": lambda: http(b"[" * MB),
    "itself, elsewhere": lambda: http(b"", "302 Found", b"location: /\r\n"),
}


@pytest.mark.abuse
@pytest.mark.parametrize("what", HOSTILE)
async def test_an_issuer_takes_no_more_than_its_keys(
    router_process, fleet_config, measured: Measured, tmp_path: Path, what: str
) -> None:
    """Clients with API keys are served meanwhile."""
    with api_keys(tmp_path, "somebody") as file:
        async with engine() as fake, issuer_serving(HOSTILE[what]()) as keys:
            config = fleet_config([fake], clients=trust(keys) | {"keys_file": str(file)})
            async with router_process(config) as r, loop_probe(r.url) as probe, dialled(r.url, 1, BENIGN) as (client,):
                await eventually(lambda: keys.asked)
                assert await status_of(client, "somebody") == 200
                await asyncio.sleep(0.5)
                measured(f"an issuer sends {what}: longest wait", await probe.longest_ms(), 150, "ms")
                measured(f"an issuer sends {what}: memory of the router", peak_bytes(r.pid) / MB, ROUTER_MB, "MB")
                assert b"Traceback" not in r.log


@contextmanager
def api_keys(folder: Path, *names: str) -> Iterator[Path]:
    """Yield a keys file: each name is its key."""
    file = folder / "keys"
    replace(file, "".join(f"{hashlib.sha256(name.encode()).hexdigest()} {name}\n" for name in names))
    yield file


@pytest.mark.abuse
async def test_a_keys_file_that_grows_to_100_000_entries_holds_up_nobody(
    router_process, fleet_config, measured: Measured, tmp_path: Path
) -> None:
    with api_keys(tmp_path, "first") as file:
        async with engine() as fake:
            config = fleet_config([fake], clients={"keys_file": str(file)})
            async with router_process(config) as r, loop_probe(r.url) as probe, dialled(r.url, 1) as (client,):
                before, numbers = r.rss_bytes, count()

                async def change() -> None:
                    used, salt = r.log.count(b"the changed keys are in use"), next(numbers)
                    replace(file, "".join(f"{n:063x}{salt} tenant-{n}\n" for n in range(100_000)))
                    await eventually(lambda: r.log.count(b"the changed keys are in use") > used, 30.0)

                longest_ms = await probe.standstill_ms(change, 75)
                measured("a keys file of 100,000 entries: longest wait", longest_ms, 150, "ms")
                measured("a keys file of 100,000 entries: memory", (r.rss_bytes - before) / MB, 96, "MB")
                assert await status_of(client, "first") == 401


@pytest.mark.abuse
async def test_tenants_without_number_cost_little_each(router_process, fleet_config, measured: Measured) -> None:
    """A proxy names each user as a tenant."""
    clients = {"tenant_header": "x-tenant"}
    listen = {"host": "127.0.0.1", "port": 0, "trusted_proxies": ["127.0.0.1"]}
    async with engine() as fake:
        config = fleet_config([fake], clients=clients, listen=listen, records={"keep": 100})
        async with router_process(config) as r, httpx.AsyncClient(timeout=60.0) as http_client:

            async def send(first: int, count: int) -> None:
                for number in range(first, first + count):
                    answer = await http_client.post(r.url + PATH, json=BODY, headers={"x-tenant": f"user-{number}"})
                    assert answer.status_code == 200, answer.text

            await send(0, WARM_UP)
            before = r.rss_bytes
            await send(WARM_UP, TENANTS)
            measured("memory per new tenant", (r.rss_bytes - before) / TENANTS, 6_000, "bytes")
            page = (await r.http.get("/metrics")).text
            series = [line for line in page.splitlines() if line.startswith("warmroute_tenant_")]
            measured(f"series of {WARM_UP + TENANTS:,} tenants", len(series), SERIES_OF_TENANTS, "series")
