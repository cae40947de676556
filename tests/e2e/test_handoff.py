"""What only a drained engine holds: where it is afterwards, and what the next sessions find."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from router.fleet.instance import InstanceState
from router.lab.emulator.mooncake_master import MasterOptions, MooncakeMaster
from tests.e2e.chats import ask
from tests.e2e.conftest import Json, Router
from tests.e2e.test_preload import SYSTEM, agents, loads, prefix_of, preloads
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.patience import PATIENCE_S

ON = {"drain": True}


async def known_to_hold(router: Router, id: str) -> None:
    """Wait until the router has heard that an instance caches something."""
    async with asyncio.timeout(PATIENCE_S):
        while not (await router.instances())[id]["targets"][0]["stream"]["blocks"]["gpu"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def known_to_be_pooled(router: Router) -> None:
    """Wait until the router finds recent prompts in the shared pool."""
    preloader = router.app.features["preload"].preloader
    async with asyncio.timeout(PATIENCE_S):
        for prompt in list(router.app.features["preload"].traffic.prompts.by_prefix().values()):
            while not await preloader.is_pooled(prompt, await preloader.tokenize(prompt)):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def drain(router: Router, id: str, way: str = "drain") -> Json:
    return dict((await router.admin.post(f"/admin/instances/{id}/{way}")).raise_for_status().json())


async def drained(router: Router, id: str) -> Json:
    """The hand-off of an instance, when it has ended."""
    await eventually(lambda: router.app.features["preload"].handoff.states[id].end is not None)
    return next(one for one in (await preloads(router))["handoffs"] if one["id"] == id)


def named(*engines: FakeEngine) -> list[Json]:
    return [{"url": one.url, "name": one.server.options.name} for one in engines]


def pair(said: Any, one: FakeEngine, two: FakeEngine) -> tuple[FakeEngine, FakeEngine]:
    """The engine that answered, and the other one."""
    return (one, two) if said.instance == one.server.options.name else (two, one)


async def test_the_next_session_hits_elsewhere_what_only_the_drained_engine_held(router: Any) -> None:
    async with engine(name="a") as a, engine(name="b") as b, router(named(a, b), preload=ON) as r:
        said = await agents(r, 3)
        await r.hear()
        leaving, staying = pair(said[0], a, b)
        assert {one.instance for one in said} == {leaving.server.options.name}
        name = leaving.server.options.name
        assert (await drain(r, name))["draining"]
        handoff = await drained(r, name)
        assert (handoff["end"], handoff["planned"], handoff["loaded"]) == ("done", 1, 1)
        (sent,) = [json.loads(one.body) for one in loads(staying)]
        assert sent["request_id"].startswith("warmroute-preload-drain-")
        assert (await r.instances())[name]["state"] == "drained"
        assert r.booked == 0
        (said,) = await agents(r, 1, first=100)
        await r.hear()
        record = await r.record(said.record)
        assert (said.instance, record["preloaded_tokens"]) == (staying.server.options.name, len(prefix_of(sent)))
        assert record["cached_tokens"] == record["attempts"][0]["predicted_tokens"] >= len(prefix_of(sent))
        assert (await preloads(r))["settled_tokens"] == {"drain": {"hit": len(prefix_of(sent))}}


async def test_it_serves_until_then_and_a_second_call_drains_it_at_once(router: Any) -> None:
    async with engine(name="a") as a, engine(name="b") as b, router(named(a, b), preload=ON) as r:
        said = await agents(r, 3)
        await r.hear()
        leaving, staying = pair(said[0], a, b)
        booking = r.core.fleet.get(staying.server.options.name).targets[0].book(100, 100)  # it has other work
        name = leaving.server.options.name
        await drain(r, name)
        seen = (await r.instances())[name]
        assert (seen["state"], seen["handing_off"]) == ("ready", True)
        (said,) = await agents(r, 1, first=50)
        await r.hear()
        assert said.instance == name
        await drain(r, name)
        seen = (await r.instances())[name]
        assert (seen["state"], seen["handing_off"]) == ("drained", False)
        assert (await drained(r, name))["end"] == "stopped"
        booking.release()


async def test_undrained_meanwhile_it_is_not_drained_later(router: Any) -> None:
    async with engine(name="a") as a, engine(name="b") as b, router(named(a, b), preload=ON) as r:
        leaving, _ = pair((await agents(r, 3))[0], a, b)
        name = leaving.server.options.name
        await drain(r, name)
        await drain(r, name, "undrain")
        await eventually(lambda: r.app.features["preload"].handoff.states[name].took_s is not None)
        assert r.core.fleet.get(name).state is InstanceState.READY


async def test_time_is_limited(router: Any) -> None:
    options = ON | {"drain_s": 0.2}
    async with engine(name="a") as a, engine(name="b") as b, router(named(a, b), preload=options) as r:
        leaving, staying = pair((await agents(r, 3))[0], a, b)
        await r.hear()
        booking = r.core.fleet.get(staying.server.options.name).targets[0].book(100, 100)  # it has other work
        name = leaving.server.options.name
        await drain(r, name)
        assert (await drained(r, name))["end"] == "late"
        assert r.core.fleet.get(name).state is InstanceState.DRAINED
        assert loads(staying) == []
        booking.release()


async def test_nothing_is_loaded_that_others_or_one_session_or_the_pool_have(router: Any) -> None:
    async with MooncakeMaster(MasterOptions()) as master:
        pooled = {"pool_url": master.url, "model": "warm-tiny"}
        options = {"pool": {"masters": [master.url], "deadline_ms": 5000, "ttl_ms": 20}}
        async with (
            engine(name="a", **pooled) as a,
            engine(name="b", **pooled) as b,
            router(named(a, b), preload=ON, **options) as r,
        ):
            leaving, staying = pair((await agents(r, 3))[0], a, b)
            await r.hear()
            await eventually(lambda: leaving.saving == 0)
            await known_to_be_pooled(r)
            await drain(r, leaving.server.options.name)
            handoff = await drained(r, leaving.server.options.name)
            assert (handoff["planned"], handoff["loaded"]) == (1, 0)
            assert loads(staying) == []
    async with engine(name="a") as a, engine(name="b") as b, router(named(a, b), preload=ON) as r:
        leaving, staying = pair((await agents(r, 3))[0], a, b)
        await r.hear()
        name = leaving.server.options.name
        r.core.drain(name, True)
        await agents(r, 1, first=50)  # a session brings it to the other one
        await known_to_hold(r, staying.server.options.name)
        r.core.drain(name, False)
        await drain(r, name)
        assert (await drained(r, name))["planned"] == 0
        assert loads(staying) == []
    async with engine(name="a") as a, engine(name="b") as b, router(named(a, b), preload=ON) as r:
        leaving, staying = pair((await agents(r, 1))[0], a, b)
        await drain(r, leaving.server.options.name)
        assert (await drained(r, leaving.server.options.name))["planned"] == 0
        assert loads(staying) == []


async def test_off_or_alone_it_is_drained_at_once(router: Any) -> None:
    async with engine(name="a") as a, engine(name="b") as b, router(named(a, b)) as r:
        await agents(r, 3)
        await drain(r, "a")
        assert r.core.fleet.get("a").state is InstanceState.DRAINED
    async with engine(name="a") as a, router(named(a), preload=ON) as r:
        await agents(r, 3)
        await drain(r, "a")
        assert r.core.fleet.get("a").state is InstanceState.DRAINED
        assert (await preloads(r))["handoffs"] == []


async def test_a_session_goes_on_where_most_of_it_is(router: Any) -> None:
    fakes = [engine(name=name) for name in "abc"]
    async with fakes[0] as a, fakes[1] as b, fakes[2] as c, router(named(a, b, c)) as r:
        (first,) = await agents(r, 1)
        await drain(r, first.instance)
        (second,) = await agents(r, 1, first=1)  # another one of the same kind, so now two hold what they share
        await drain(r, first.instance, "undrain")
        chat = [SYSTEM, {"role": "user", "content": "agent 0 asks"}, *said_and_asked(first)]
        assert (await ask(r, chat)).instance == first.instance
        await drain(r, first.instance)
        assert (await ask(r, chat)).instance == second.instance


def said_and_asked(first: Any) -> list[Json]:
    return [{"role": "assistant", "content": first.text}, {"role": "user", "content": "and then?"}]
