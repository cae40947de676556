"""Engines whose health probes time out while they answer: nobody gets 503 for that, and everybody can see it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from router.clock import SystemClock
from router.fleet.instance import InstanceState
from router.operate.doctor.gather import DoctorOptions
from router.operate.doctor.suite import examine
from tests.e2e.chats import PATH, ask
from tests.e2e.conftest import MODEL, Json, Router
from tests.e2e.workers import Clients, all_up, say
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.fakes.webhook import Webhook
from tests.patience import PATIENCE_S

HEALTH = {"interval_s": 0.1, "timeout_s": 0.2, "failures": 2}
MESSAGES = [{"role": "user", "content": "is anybody there?"}]
QUESTION = {"model": MODEL, "messages": MESSAGES}
PANICS = "warmroute_panic_attempts_total"


@asynccontextmanager
async def two_slow(router: Any, **sections: Any) -> AsyncIterator[tuple[Router, list[FakeEngine]]]:
    """A router in front of two engines whose probes time out."""
    fleet = {"health": HEALTH} | sections.pop("fleet", {})
    async with engine(name="a") as a, engine(name="b") as b, router([a, b], fleet=fleet, **sections) as r:
        for fake in (a, b):
            fake.faults(hang=["/health"])
        await eventually(lambda: states(r) == {InstanceState.DOWN})
        yield r, [a, b]


def states(r: Router) -> set[InstanceState]:
    return {instance.state for instance in r.core.fleet}


async def status(r: Router) -> int:
    return (await ask(r, MESSAGES)).status


async def test_engines_that_are_all_down_by_slow_probes_alone_are_served_and_it_shows(router, caplog) -> None:
    async with two_slow(router) as (r, engines):
        assert [await status(r) for _ in range(6)] == [200] * 6
        assert (await r.http.get("/ready")).status_code == 200
        models = (await r.http.get("/v1/models")).json()["data"]
        assert [card["id"] for card in models] == [MODEL]
        assert await r.metric(PANICS) == 6
        (record, *_) = await r.records(1)
        attempt = (await r.record(record["id"]))["attempts"][0]
        assert (attempt["panic"], attempt["down"]) == (True, True)
        assert record["why"].startswith("panic: the health probes of all engines that could answer time out")
        explained = (await r.admin.post("/admin/explain", params={"path": PATH}, json=QUESTION)).json()
        assert any(note.startswith("panic: the health probes") for note in explained["notes"]), explained
        for one in (await r.instances()).values():
            assert (one["state"], one["panic"]) == ("down", True)
            assert one["trouble"] == "GET /health: no answer within 0.2 s"
        findings = (await examine(DoctorOptions(None, (r.admin_url,)), SystemClock())).findings
        assert any("served all the same" in found.finding.why for found in findings), findings
        for fake in engines:
            fake.faults(hang=[])
        await eventually(lambda: states(r) == {InstanceState.READY})
        assert await status(r) == 200
        assert await r.metric(PANICS) == 6
        assert not any(one["panic"] for one in (await r.instances()).values())
        told = [line for line in caplog.messages if "panic" in line]
        assert len(told) == 2, told
        assert MODEL in told[0]
        assert "begins" in told[0]
        assert "over" in told[1]


async def test_one_engine_that_is_well_gets_everything(router) -> None:
    async with two_slow(router) as (r, engines):
        engines[0].faults(hang=[])
        await eventually(lambda: InstanceState.READY in states(r))
        said = [await ask(r, MESSAGES) for _ in range(6)]
        assert {one.instance for one in said} == {engines[0].address}
        assert await r.metric(PANICS) == 0


@pytest.mark.parametrize("why", ["unhealthy", "stopped", "drained"])
async def test_what_is_down_or_drained_for_another_reason_stays_out(router, why: str) -> None:
    async with two_slow(router) as (r, engines):
        a, b = engines
        if why == "unhealthy":
            b.faults(hang=[], unhealthy=True)
        elif why == "drained":
            (await r.admin.post(f"/admin/instances/{b.address}/drain")).raise_for_status()
        else:
            await b.server.__aexit__(None, None, None)
        await eventually(lambda: not any(i.is_slow for i in r.core.fleet if i.id == b.address))
        said = [await ask(r, MESSAGES) for _ in range(6)]
        assert {(one.status, one.instance) for one in said} == {(200, a.address)}
        if why == "stopped":
            await b.server.__aenter__()


async def test_a_restarted_engine_is_served_while_it_is_asked_what_it_serves(router) -> None:
    """`/health` answers again and `/v1/models` does not yet."""
    async with two_slow(router) as (r, engines):
        for fake in engines:
            fake.faults(hang=["/v1/models"])
        await eventually(lambda: InstanceState.JOINING in states(r))
        assert await status(r) == 200


async def test_nobody_is_woken_and_nothing_waits_for_engines_that_answer(router) -> None:
    async with Webhook() as hook:
        wake = {"models": {"warm-*": {"webhook": {"url": hook.url}}}, "wait_s": 0.2}
        async with two_slow(router, wake=wake) as (r, _):
            assert await status(r) == 200
            assert not hook.requests


async def test_an_alias_prefers_a_model_that_is_up(router) -> None:
    """As where all breakers of its first model are open."""
    aliases = {"best": {"to": MODEL, "fallbacks": ["other"]}}
    async with (
        engine(name="slow") as slow,
        engine(name="well", model="other", tokenizer=None) as well,
        router([slow, well], fleet={"health": HEALTH}, models=aliases) as r,
    ):
        slow.faults(hang=["/health"])
        await eventually(lambda: InstanceState.DOWN in states(r))
        assert (await ask(r, MESSAGES, model="best")).instance == well.address
        well.faults(hang=["/health"])
        await eventually(lambda: states(r) == {InstanceState.DOWN})
        assert (await ask(r, MESSAGES, model="best")).instance == slow.address


async def test_an_engine_that_delivers_is_not_taken_down_by_a_slow_probe(router) -> None:
    async with engine(decode_ms_per_token=20) as fake, router([fake], fleet={"health": HEALTH}) as r:
        body: Json = {"model": MODEL, "messages": MESSAGES, "stream": True, "max_tokens": 200, "ignore_eos": True}
        async with r.http.stream("POST", PATH, json=body) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            fake.faults(hang=["/health"])
            before = len(fake.seen("/health"))
            async for _ in lines:
                assert states(r) == {InstanceState.READY}
                if len(fake.seen("/health")) >= before + 5:
                    break
        (instance,) = (await r.instances()).values()
        assert (instance["state"], instance["trouble"]) == ("ready", "GET /health: no answer within 0.2 s")
        await eventually(lambda: states(r) == {InstanceState.DOWN})


async def test_a_stored_response_is_reached_where_it_is(router) -> None:
    async with engine(name="a") as a, engine(name="b") as b, router([a, b], fleet={"health": HEALTH}) as r:
        made = await r.post("/v1/responses", {"model": MODEL, "input": "keep this", "max_output_tokens": 3})
        holder = next(fake for fake in (a, b) if fake.address == made.headers["x-warmroute-target"].rpartition("/")[0])
        holder.faults(hang=["/health"])
        await eventually(lambda: InstanceState.DOWN in states(r))
        found = await r.http.get(f"/v1/responses/{made.json()['id']}")
        assert (found.status_code, found.json()["id"]) == (200, made.json()["id"])


async def test_a_frozen_engine_is_not_taken_for_one_that_delivers(router) -> None:
    async with engine(decode_ms_per_token=20) as fake, router([fake], fleet={"health": HEALTH}) as r:
        body: Json = {"model": MODEL, "messages": MESSAGES, "stream": True, "max_tokens": 200, "ignore_eos": True}
        async with r.http.stream("POST", PATH, json=body) as answer:
            await anext(answer.aiter_lines())
            fake.faults(freeze=True)
            async with asyncio.timeout(PATIENCE_S):
                await eventually(lambda: states(r) == {InstanceState.DOWN})


async def test_several_processes_serve_alike(router_process, fleet_config) -> None:
    async with engine(name="a") as a, engine(name="b") as b:
        config = fleet_config([a, b], fleet={"health": HEALTH}, workers=2)
        async with router_process(config) as r:
            await all_up(r)
            for fake in (a, b):
                fake.faults(hang=["/health"])
            async with asyncio.timeout(PATIENCE_S):
                while {one["state"] for one in (await r.instances()).values()} != {"down"}:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            async with Clients(r) as clients:
                assert len(clients.each) == 2
                said = [await say(client, "is anybody there?") for client in clients.each for _ in range(6)]
            assert {one.status for one in said} == {200}
