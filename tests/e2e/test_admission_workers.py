"""Admission over several worker processes: one for all, whichever worker a request reaches, and whichever dies."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest

from tests.e2e.chats import Said
from tests.e2e.conftest import Json, RouterProcess
from tests.e2e.workers import ONE_CONNECTION, all_up, nothing_under_way, run_of, say, until
from tests.fakes.engines import engine

SLOW = {"block_tokens": 16, "blocks": 40, "decode_ms_per_token": 1000.0}  # 640 tokens; an answer takes minutes
ON: Json = {"enabled": True, "rule": {"name": "fit", "idle_below": 0}, "idle_s": 2.0}
WORDS = " ".join(f"word {number}" for number in range(40))


async def model(r: RouterProcess) -> Json:
    """The only model's admission, as the admin API shows it; empty before its first request."""
    models = (await r.admin.get("/admin/admission")).raise_for_status().json()["models"]
    return dict(models[0]) if models else {}


async def waiting(r: RouterProcess) -> int:
    return sum((await model(r)).get("queued", {}).values())


async def all_here(r: RouterProcess, count: int) -> bool:
    """So many requests run or wait, in all workers together."""
    running = await r.metric("warmroute_in_flight_requests")
    return running + await r.metric("warmroute_admission_waiting_requests") == count


async def capacity_known(r: RouterProcess) -> bool:
    (instance,) = (await r.admin.get("/admin/instances")).json()["instances"]
    return instance["targets"][0]["capacity_tokens"] is not None


def talk(client: httpx.AsyncClient, name: str) -> asyncio.Task[Said]:
    """Begin a session whose answer takes minutes."""
    text = f"{name} {WORDS}"
    return asyncio.create_task(say(client, text, session=name, max_tokens=200, ignore_eos=True))


@asynccontextmanager
async def connections(r: RouterProcess, each: int) -> AsyncIterator[dict[str, list[httpx.AsyncClient]]]:
    """Clients of one connection, at least `each` per worker, by the run of the worker that has the connection. Their
    own sessions are forgotten.
    """
    runs = {str(one["run"]) for one in await all_up(r)}
    found: dict[str, list[httpx.AsyncClient]] = {run: [] for run in runs}
    async with AsyncExitStack() as opened:
        for _ in range(100):
            if all(len(clients) >= each for clients in found.values()):
                break
            client = await opened.enter_async_context(r.client(limits=ONE_CONNECTION, timeout=120.0))
            found[run_of(await say(client, "which worker are you?", max_tokens=1))].append(client)
        await until(lambda: nobody_known(r))
        yield found


@asynccontextmanager
async def talking(talks: Sequence[asyncio.Task[Said]]) -> AsyncIterator[None]:
    try:
        yield
    finally:
        for each in talks:
            each.cancel()
        await asyncio.gather(*talks, return_exceptions=True)


@asynccontextmanager
async def routed(router_process, fleet_config, workers: int, **admission: object) -> AsyncIterator[RouterProcess]:
    async with engine(**SLOW) as a:
        config = fleet_config([a], workers=workers, admission=ON | admission)
        async with router_process(config) as r:
            await all_up(r)
            await until(lambda: capacity_known(r))
            yield r


async def test_as_many_sessions_begin_by_three_workers_as_by_one(router_process, fleet_config) -> None:
    async def begun(workers: int) -> tuple[int, Json]:
        """Sessions that begin, of 12 at once, and what admission counts then."""
        async with routed(router_process, fleet_config, workers) as r, connections(r, 12 // workers) as clients:
            spread = [clients[run][number] for number in range(12 // workers) for run in clients]
            talks = [talk(client, f"session {number:02}") for number, client in enumerate(spread)]
            async with talking(talks):
                await until(lambda: all_here(r, 12))
                shown = await model(r)
                held = await waiting(r)
            await until(lambda: nothing_under_way(r))
            await until(lambda: nobody_known(r))
        return 12 - held, {name: shown[name] for name in ("capacity_tokens", "known_sessions")}

    one, three = await begun(1), await begun(3)
    assert one == three
    assert 2 <= one[0] < 12
    assert one[1]["capacity_tokens"] == 640


async def nobody_known(r: RouterProcess) -> bool:
    shown = await model(r)
    return (shown["known_sessions"], shown["live_sessions"], shown["context_tokens"]) == (0, 0, 0)


async def test_a_killed_worker_gives_back_what_its_sessions_held(router_process, fleet_config) -> None:
    """One worker's sessions fill the memory, and more of it wait, as do some of the other one. It is killed: what it
    held and what it queued is gone, and the others begin.
    """
    async with routed(router_process, fleet_config, 2) as r, connections(r, 6) as clients:
        leader, follower = await all_up(r)
        dying, staying = clients[follower["run"]], clients[leader["run"]]
        lost = [talk(dying[number], f"lost {number}") for number in range(6)]
        async with talking(lost):
            await until(lambda: all_here(r, 6))
            queued = await waiting(r)
            assert 0 < queued < 6
            kept = [talk(staying[number], f"kept {number}") for number in range(2)]
            async with talking(kept):
                await until(lambda: all_here(r, 8))
                assert await waiting(r) == queued + 2
                os.kill(follower["pid"], signal.SIGKILL)
                await until(lambda: all_here(r, 2))
                assert await waiting(r) == 0
                assert all(
                    isinstance(end, httpx.TransportError) for end in await asyncio.gather(*lost, return_exceptions=True)
                )
        await until(lambda: nothing_under_way(r))
        await until(lambda: nobody_known(r))


async def test_when_the_worker_that_decides_is_killed_the_next_one_goes_on(router_process, fleet_config) -> None:
    """The other worker's sessions keep their places, and those of them that wait go on waiting, until there is room."""
    async with routed(router_process, fleet_config, 2) as r, connections(r, 6) as clients:
        deciding, other = await all_up(r)
        assert deciding["on_duty"]
        talks = [talk(clients[other["run"]][number], f"session {number}") for number in range(6)]
        async with talking(talks):
            await until(lambda: all_here(r, 6))
            queued = await waiting(r)
            assert queued > 0
            os.kill(deciding["pid"], signal.SIGKILL)
            await until(lambda: waits(r, queued))
            assert not any(each.done() for each in talks)
            assert [one["on_duty"] for one in await all_up(r, but=[deciding["pid"]])] == [False, True]
            for each in talks[:-1]:
                each.cancel()
            await until(lambda: all_here(r, 1))
            await until(lambda: waits(r, 0))
        await until(lambda: nothing_under_way(r))
        await until(lambda: nobody_known(r))


@pytest.mark.parametrize("by", ["leader", "follower"])
async def test_the_rule_is_switched_for_all_workers(router_process, fleet_config, by: str) -> None:
    async with routed(router_process, fleet_config, 2) as r, connections(r, 8) as clients:
        leader, follower = await all_up(r)
        run = str((leader if by == "leader" else follower)["run"])
        talks = [talk(clients[run][number], f"session {number}") for number in range(8)]
        async with talking(talks):
            await until(lambda: all_here(r, 8))
            queued = await waiting(r)
            assert queued > 1
            rule = f"{{name: concurrency, per_target: {8 - queued + 1}}}"  # room for one more
            assert (await r.admin.put("/admin/admission", content=f"enabled: true\nrule: {rule}")).is_success
            await until(lambda: waits(r, queued - 1))
            assert (await r.admin.put("/admin/admission", content="enabled: false")).is_success
            await until(lambda: waits(r, 0))
            await until(lambda: all_here(r, 8))
        await until(lambda: nothing_under_way(r))


async def waits(r: RouterProcess, count: int) -> bool:
    return await waiting(r) == count
