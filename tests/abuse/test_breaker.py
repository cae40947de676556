"""One client cannot close the fleet: requests that make engines fail, from one address, beside those of another.

The engines answer requests with `attack-WORD` in their text in that way, and all others well; their health is good.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from router.lab.emulator.http_server import HttpExchange
from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL, Json, RouterClient
from tests.e2e.test_pairs import POLICY as SPLITTING
from tests.e2e.test_pairs import instance_of
from tests.e2e.workers import all_up
from tests.fakes.engines import FakeEngine, engine, eventually

GOOD = 30  # requests of the good client
ATTACK = re.compile(rb"attack-(\w+)")
LONG = "It was the best of times, it was the worst of times. " * 12


def weaken(fake: FakeEngine) -> FakeEngine:
    """Let the engine fail where a request's text says so: with a status, or by cutting the connection."""
    routes: dict[tuple[str, str], Any] = fake.server.app._routes
    generate = routes["POST", PATH]

    async def answer(exchange: HttpExchange) -> None:
        found = ATTACK.search(exchange.body)
        match found and found[1].decode():
            case None:
                await generate(exchange)
            case "die":
                await exchange.abort()
            case "cut":
                await exchange.start_stream()
                await exchange.write(b'data: {"choices": [{"index": 0, "delta": {"content": "I"}}]}\n\n')
                await exchange.abort()
            case status:
                await exchange.send_json({"error": {"message": "no", "code": int(status)}}, int(status))

    routes["POST", PATH] = answer
    return fake


@asynccontextmanager
async def weak_engines(count: int, **options: Any) -> AsyncIterator[list[FakeEngine]]:
    async with AsyncExitStack() as stack:
        yield [weaken(await stack.enter_async_context(engine(name=f"e{n}", **options))) for n in range(count)]


class Client:
    """A client with an address of its own. `fresh`: each request has a new connection, so that all workers meet it."""

    def __init__(self, client: RouterClient, address: str, *, fresh: bool = False) -> None:
        limits = httpx.Limits(max_connections=8, max_keepalive_connections=0 if fresh else 8)
        transport = httpx.AsyncHTTPTransport(local_address=address, limits=limits)
        self.http = httpx.AsyncClient(base_url=client.url, transport=transport, timeout=10.0)
        self.sent = 0

    async def say(self, text: str, *, stream: bool = False, **headers: str) -> httpx.Response:
        self.sent += 1
        content = [{"role": "user", "content": f"{self.sent} {text}"}]
        body = {"model": MODEL, "messages": content, "max_tokens": 2, "stream": stream}
        return await self.http.post(PATH, json=body, headers=headers)

    async def attack(self, *ways: str) -> None:
        """Send a bad request in each of these ways, each in a session of its own."""
        sessions = [{"x-session-id": f"{self.sent}-{n}"} for n in range(len(ways))]
        await asyncio.gather(
            *(self.say(f"attack-{way}", stream=way == "cut", **own) for way, own in zip(ways, sessions, strict=True)),
            return_exceptions=True,
        )


@asynccontextmanager
async def clients(client: RouterClient, *addresses: str, fresh: bool = False) -> AsyncIterator[list[Client]]:
    everybody = [Client(client, address, fresh=fresh) for address in addresses]
    try:
        yield everybody
    finally:
        for each in everybody:
            await each.http.aclose()


async def besieged(good: Client, bad: Sequence[Client], ways: Sequence[str], text: str = "hello") -> Counter[int]:
    """Statuses of the good client's requests, each sent after every bad client has sent its own."""
    statuses: Counter[int] = Counter()
    for _ in range(GOOD):
        await asyncio.gather(*(each.attack(*ways) for each in bad))
        statuses[(await good.say(text)).status_code] += 1
    return statuses


def open_breakers(instances: dict[str, Json]) -> list[str]:
    """Targets whose breaker is not closed."""
    return [target["id"] for i in instances.values() for target in i["targets"] if target["breaker"] != "closed"]


@pytest.mark.parametrize("way", ["500", "502", "504", "cut", "die"])
async def test_one_client_cannot_close_the_fleet(router, measured, way) -> None:
    """Four bad requests before each good one. `cut`: the answer begins and breaks off; `die`: it does not begin."""
    async with weak_engines(4) as fleet, router(fleet) as r, clients(r, "127.0.0.1", "127.0.0.2") as (good, bad):
        await good.say("I was here before")
        statuses = await besieged(good, [bad], [way] * 4)
        failed = GOOD - statuses[200]
        measured(
            f"good requests that failed, of {GOOD}, beside one client's that end in `{way}`", failed, 0, "requests"
        )
        assert await r.metric("warmroute_panic_attempts_total") < GOOD
        assert len(open_breakers(await r.instances())) < 4


async def test_several_clients_open_breakers_and_the_fleet_answers_all_the_same(router, measured) -> None:
    addresses = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
    async with weak_engines(3) as fleet, router(fleet) as r, clients(r, *addresses) as (good, *bad):
        statuses = await besieged(good, bad, ["500", "502"])
        measured(f"good requests that failed, of {GOOD}, beside three attackers", GOOD - statuses[200], 0, "requests")


async def test_with_all_breakers_open_the_record_the_metrics_and_explain_say_panic(router) -> None:
    async with weak_engines(2) as fleet, router(fleet) as r, clients(r, "127.0.0.1", "127.0.0.2") as (good, bad):
        while len(open_breakers(await r.instances())) < 2:
            await bad.attack("500", "500", "500")
        body = {"model": MODEL, "messages": [{"role": "user", "content": "where to?"}]}
        explained = (await r.admin.post("/admin/explain", params={"path": PATH}, json=body)).json()
        assert any(note.startswith("panic: ") for note in explained["notes"]), explained
        before = await r.metric("warmroute_panic_attempts_total")
        answer = await good.say("hello")
        assert answer.status_code == 200
        record = await r.record(answer)
        assert record["attempts"][0]["panic"]
        assert record["why"].startswith("panic: ")
        assert (record["client"], record["sender"]) == (None, "127.0.0.1")
        assert await r.metric("warmroute_panic_attempts_total") == before + 1


async def test_a_broken_engine_is_left_alone_when_all_clients_have_one_address(router) -> None:
    async with weak_engines(2) as (sick, well), router([sick, well]) as r, clients(r, "127.0.0.1") as (good,):
        sick.faults(error_rate=1)
        statuses = Counter([(await good.say("hello")).status_code for _ in range(GOOD)])
        assert statuses[500] <= 4  # until its breaker opens, and one trial
        assert statuses[200] == GOOD - statuses[500]


async def test_a_broken_engine_is_left_alone_when_several_clients_meet_it(router) -> None:
    addresses = ("127.0.0.1", "127.0.0.2")
    async with weak_engines(2) as (sick, well), router([sick, well]) as r, clients(r, *addresses) as both:
        for each in both:
            assert (await each.say("while all is well")).status_code == 200
        sick.faults(error_rate=1)
        statuses = Counter([(await both[n % 2].say("hello")).status_code for n in range(GOOD)])
        assert statuses[500] <= 6
        assert statuses[200] == GOOD - statuses[500]


async def test_bad_requests_do_not_close_the_prefill_side(router, measured) -> None:
    """They fail in the prefill half, of which two are tried, and then in the decode instance."""
    roles = {"p": "prefill", "q": "prefill", "c": "decode", "d": "decode"}
    async with AsyncExitStack() as stack:
        fakes = [
            weaken(await stack.enter_async_context(engine(name=name, role=role, transfer="nixl")))
            for name, role in roles.items()
        ]
        instances = [instance_of(fake, "nixl") for fake in fakes]
        r = await stack.enter_async_context(router(instances, policies={"warm": SPLITTING}))
        good, bad = await stack.enter_async_context(clients(r, "127.0.0.1", "127.0.0.2"))
        for n in range(8):
            assert (await good.say(f"{LONG} {n}")).status_code == 200
        statuses = await besieged(good, [bad], [f"500 {LONG}"] * 3, LONG)
        failed = GOOD - statuses[200]
        measured(f"good requests that failed, of {GOOD}, split in two halves", failed, 0, "requests")
        assert open_breakers(await r.instances()) == []
        record = await r.record(await good.say(LONG))
        assert record["attempts"][0]["prefill"]["end"] == "ok"


@pytest.mark.abuse
async def test_one_client_cannot_close_the_fleet_to_any_worker(router_process, fleet_config, measured) -> None:
    async with weak_engines(3) as fleet, router_process(fleet_config(fleet, workers=2)) as r:
        await all_up(r)
        async with clients(r, "127.0.0.1", "127.0.0.2", fresh=True) as (good, bad):
            statuses = await besieged(good, [bad], ["500"] * 6)
        measured(f"good requests that failed, of {GOOD}, at two workers", GOOD - statuses[200], 0, "requests")


async def test_a_prompt_that_kills_engines_is_seen(router) -> None:
    """Each costs two engines one connection at most, and the record names who sent it."""
    async with weak_engines(3) as fleet, router(fleet) as r, clients(r, "127.0.0.1", "127.0.0.2") as (good, bad):
        await good.say("hello")
        for _ in range(5):
            answer = await bad.say("attack-die")
            assert (answer.status_code, answer.json()["error"]["code"]) == (502, "engine_died")
        assert await r.metric("warmroute_poison_requests_total") == 5
        assert await r.metric("warmroute_errors_total", reason="poison") == 5
        poison = [record for record in await r.records() if record["poison"]]
        assert {(record["sender"], len(record["attempts"])) for record in poison} == {("127.0.0.2", 2)}
        assert (await good.say("hello")).status_code == 200
        await eventually(r.idle)
