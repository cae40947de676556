"""Several routers in front of the same engines: they decide on the same load, and nothing is left of one that dies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from router.lab.local_stack.preflight import free_ports
from tests.e2e.chats import beside
from tests.e2e.conftest import MODEL, Json, Router, RouterProcess
from tests.e2e.workers import Clients, all_up, say
from tests.fakes.engines import engine, eventually
from tests.patience import PATIENCE_S

SLOW = {"decode_ms_per_token": 20}
LONG = {"ignore_eos": True, "max_tokens": 40}
LEAST = {"warm": {"scorers": [{"name": "least_requests"}]}}
SESSIONS = {"warm": {"scorers": [{"name": "session_affinity"}]}}
SECRET = "WARMROUTE_TEST_REPLICAS"


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], list[Json]]:
    """`settings(count)`: the section `replicas` of that many routers."""
    monkeypatch.setenv(SECRET, "0123456789abcdef" * 2)

    def choose(count: int) -> list[Json]:
        ports = free_ports(count)
        peers = [f"127.0.0.1:{port}" for port in ports]
        return [{"peers": peers, "secret_env": SECRET, "host": "127.0.0.1", "port": port} for port in ports]

    return choose


def others(router: Router) -> list[Any]:
    return [report for report in router.app.status.describe_replicas() if not report.own]


def all_heard(*routers: Router) -> bool:
    return all(other.up for router in routers for other in others(router))


async def test_two_routers_decide_on_the_same_load_sessions_and_drains(router, settings) -> None:
    mine, theirs = settings(2)
    async with (
        engine(**SLOW) as a,
        engine(**SLOW) as b,
        router([a, b], policies=LEAST | {"homes": SESSIONS["warm"]}, replicas=mine) as one,
        router([a, b], policies=LEAST | {"homes": SESSIONS["warm"]}, replicas=theirs) as other,
    ):
        await eventually(lambda: all_heard(one, other))
        for first, second in ((one, other), (other, one)):
            async with beside(say(first.http, "first", **LONG)) as begun:
                await eventually(lambda second=second: second.booked == 1)
                async with beside(say(second.http, "second", **LONG)) as next_one:
                    assert len({said.target for said in await asyncio.gather(begun, next_one)}) == 2
            await eventually(lambda: one.booked == other.booked == 0)
        (await one.admin.post("/admin/activate", json={"policy": "homes"})).raise_for_status()
        await eventually(lambda: other.core.selector.policy_set.active == "homes")
        homes = {f"agent {n}": (await say(one.http, "begin", session=f"agent {n}")).target for n in range(20)}
        assert len(set(homes.values())) == 2
        made = await one.http.post("/v1/responses", json={"model": MODEL, "input": "remember", "store": True})
        stored = made.json()["id"]
        await eventually(lambda: other.core.response_target(stored) is not None)  # and then all that was sent before
        assert other.core.response_target(stored) == made.headers["x-warmroute-target"]
        for session, home in homes.items():
            assert (await say(other.http, "go on", session=session)).target == home
        drained = made.headers["x-warmroute-target"].rpartition("/")[0]
        (await other.admin.post(f"/admin/instances/{drained}/drain")).raise_for_status()
        await eventually(lambda: one.core.fleet.get(drained).drained)
        (await one.admin.post(f"/admin/instances/{drained}/undrain")).raise_for_status()
        await eventually(lambda: not other.core.fleet.get(drained).drained)
        answer = (await one.admin.get("/admin/replicas")).raise_for_status().json()["replicas"]
        assert [(each["address"], each["own"], each["up"]) for each in answer] == [
            (mine["peers"][0], True, False),
            (mine["peers"][1], False, True),
        ]
        assert await one.metric("warmroute_replica_up", replica=mine["peers"][1]) == 1
        assert await one.metric("warmroute_replica_bytes_total", direction="received") > 0


async def test_a_split_of_a_model_is_counted_at_both_routers_and_a_canary_that_fails_is_out_at_both(
    router, settings
) -> None:
    arms = {"stable": {"model": MODEL, "share": 50}, "canary": {"model": "other", "share": 50}}
    guard = {"metric": "error_rate", "min_units": 5, "alpha": 0.05}
    models = {"chat": {"split": arms, "experiment": {"observe_s": 0.1, "guard": guard}}}
    mine, theirs = settings(2)
    async with (
        engine() as a,
        engine(model="other") as b,
        router([a, b], models=models, replicas=mine) as one,
        router([a, b], models=models, replicas=theirs) as other,
    ):
        both = (one, other)
        await eventually(lambda: all_heard(*both))
        for number in range(20):  # each session at both
            assert (await say(both[number % 2].http, "hello", session=f"s{number // 2}", model="chat")).status == 200
        for each in both:
            await eventually(
                lambda each=each: sum(arm.requests for arm in split_of(each).experiment.report().arms) == 20
            )
        b.faults(error_rate=1.0)
        number = 0
        while not all(split_of(each).rolled_back for each in both):
            assert number < 2000
            await say(both[number % 2].http, "hello", session=f"t{number // 2}", model="chat")
            number += 1
        assert [split_of(each).rolled_back for each in both] == [{"canary"}, {"canary"}]
        for each in both:
            await eventually(lambda each=each: rollbacks_of(each))


def split_of(router: Router) -> Any:
    (split,) = router.app.core.control.splits.splits
    return split


def rollbacks_of(router: Router) -> list[Any]:
    """The entries of rollbacks in a router's audit log, its own and the other's."""
    return [entry for entry in router.app.core.control.audit.latest() if entry.what == "rollback of model chat"]


async def test_a_router_of_several_workers_is_one_replica_and_nothing_of_it_is_left_when_it_is_killed(
    router, router_process, fleet_config, settings
) -> None:
    mine, theirs = settings(2)
    async with (
        engine(**SLOW) as a,
        engine(**SLOW) as b,
        router([a, b], policies=LEAST, replicas=mine) as one,
        router_process(fleet_config([a, b], policies=LEAST, replicas=theirs, workers=2)) as many,
    ):
        await all_up(many)
        await eventually(lambda: all_heard(one))
        long = LONG | {"max_tokens": 400}
        async with Clients(many) as clients:
            await eventually(one.idle)
            async with beside(say(one.http, "long", **long)) as here:
                for client in clients.each:  # each worker knows of it, and chooses the other engine
                    await eventually(lambda: one.booked == 1)
                    taken = busy(one)
                    await known(many, 1)
                    assert (await say(client, "short", max_tokens=1)).target not in taken
                assert not here.done()
        await eventually(one.idle)
        async with beside(say_in_vain(many, 6)):
            await eventually(lambda: one.booked == 6)
            many.process.kill()
            await eventually(lambda: one.booked == 0)
        (gone,) = others(one)
        assert (gone.up, gone.last_heard_s) == (False, None)
        assert one.idle()
        assert (await say(one.http, "after")).status == 200


async def known(router: RouterProcess, requests: int) -> None:
    """Wait until all its workers know of so many requests, none of which is its own."""
    async with asyncio.timeout(PATIENCE_S):
        while await booked(router) != requests:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    assert await router.metric("warmroute_target_requests") == 0  # the leader sends what it knows when it asks workers


async def booked(router: RouterProcess) -> int:
    """Requests at all targets, by the books of the leader."""
    instances = (await router.instances()).values()
    return sum(target["load"]["requests"] for instance in instances for target in instance["targets"])


def busy(router: Router) -> set[str]:
    """The targets with requests, by the books of this router."""
    found = (target for instance in router.core.fleet for target in instance.targets.values())
    return {target.id for target in found if target.load_book.requests}


async def say_in_vain(router: RouterProcess, count: int) -> None:
    """Send requests whose router dies."""
    said = await asyncio.gather(*(say(router.http, f"lost {n}", **LONG) for n in range(count)), return_exceptions=True)
    assert all(isinstance(one, httpx.TransportError) for one in said)
