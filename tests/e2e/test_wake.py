"""From zero: requests for a model without an instance wait on real sockets until one is there."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from tests.e2e.chats import PATH
from tests.e2e.conftest import MODEL, Json
from tests.e2e.workers import all_up
from tests.fakes.engines import engine, eventually
from tests.fakes.webhook import Webhook
from tests.patience import PATIENCE_S

REQUESTS = 100


def wake(hook: Webhook, **settings: Any) -> Json:
    return {"models": {"warm-*": {"webhook": {"url": hook.url}}}} | settings


def fleet_file(folder: Path, *urls: str) -> Json:
    """A fleet of a file that lists these engines; the router sees within some milliseconds that it is written again."""
    file = folder / "engines.yaml"
    file.write_text(json.dumps([{"url": url} for url in urls]))
    return {"instances": [], "file": str(file), "file_poll_s": 0.02}


def a_body(number: int, model: str = MODEL) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": f"question {number}"}], "max_tokens": 2}


async def test_requests_wait_for_the_first_instance_none_is_lost_and_none_sent_twice(router, tmp_path) -> None:
    async with AsyncExitStack() as stack:
        hook, first = await stack.enter_async_context(Webhook()), await stack.enter_async_context(engine())
        async with router([], fleet=fleet_file(tmp_path), wake=wake(hook), wait=False) as r:
            assert (await r.http.get("/ready")).status_code == 200, "or no request would ever come"
            tasks = [asyncio.create_task(r.post(PATH, a_body(number), timeout=60.0)) for number in range(REQUESTS)]
            await eventually(lambda: sum(r.app.features["autoscaling"].wake.waits.waiting().values()) == REQUESTS)
            await eventually(lambda: hook.requests)
            assert await r.metric("warmroute_wake_waiting_requests", model="warm-*") == REQUESTS
            first.server.app.requests = deque()  # all of them, not only the last ones
            fleet_file(tmp_path, first.url)
            answers = await asyncio.gather(*tasks)
            assert Counter(answer.status_code for answer in answers) == {200: REQUESTS}
            sent = Counter(json.loads(seen.body)["messages"][0]["content"] for seen in first.seen(PATH))
            assert sent == {f"question {number}": 1 for number in range(REQUESTS)}
            (called,) = hook.requests
            assert json.loads(called[1])["model"] == MODEL
            assert (await r.record(answers[0]))["stages"]["wake_ms"] > 0
            assert await r.metric("warmroute_wake_waits_total", model="warm-*", end="passed") == REQUESTS
            assert await r.metric("warmroute_wake_calls_total", model="warm-*", end="accepted") == 1
            await eventually(r.idle)


async def test_what_may_not_wait_and_what_waits_in_vain(router, tmp_path) -> None:
    async with Webhook() as hook:
        hook.status = 500
        settings = wake(hook, wait_s=1.5, pause_s=60.0)
        async with router([], fleet=fleet_file(tmp_path), wake=settings, wait=False) as r:
            unknown = await r.post(PATH, a_body(1, "other"))
            assert (unknown.status_code, unknown.json()["error"]["code"]) == (404, "model_not_found")
            late = await r.post(PATH, a_body(2))
            assert (late.status_code, late.headers["retry-after"]) == (503, "60")
            assert late.json()["error"]["code"] == "not_woken"
            assert "the last call that was to start one failed" in late.json()["error"]["message"]
            assert await r.metric("warmroute_wake_waits_total", end="timed_out") == 1
            assert r.idle()


async def test_an_adapter_that_can_be_loaded_waits_for_its_base_alone(router, tmp_path) -> None:
    adapters = {"warm-poet": {"path": "/adapters/warm-poet", "base": MODEL}}
    async with Webhook() as hook, engine(runtime_loras=True) as first:
        fleet, settings = fleet_file(tmp_path), wake(hook, wait_s=20.0)
        async with router([], fleet=fleet, wake=settings, adapters=adapters, wait=False) as r:
            waiting = asyncio.create_task(r.post(PATH, a_body(1, "warm-poet"), timeout=60.0))
            await eventually(lambda: hook.requests)
            assert json.loads(hook.requests[0][1])["model"] == MODEL
            fleet_file(tmp_path, first.url)
            assert (await waiting).status_code == 200
            assert (await r.post(PATH, a_body(2, "warm-poet"))).status_code == 200
            assert await r.metric("warmroute_wake_waits_total", model="warm-*", end="passed") == 1


async def test_a_client_that_leaves_frees_its_place(router, tmp_path) -> None:
    async with AsyncExitStack() as stack:
        hook, first = await stack.enter_async_context(Webhook()), await stack.enter_async_context(engine())
        async with router([], fleet=fleet_file(tmp_path), wake=wake(hook), wait=False) as r:
            waiting = lambda: sum(r.app.features["autoscaling"].wake.waits.waiting().values())  # noqa: E731
            async with r.client() as leaves:
                task = asyncio.create_task(leaves.post(PATH, json=a_body(1)))
                await eventually(lambda: waiting() == 1)
                task.cancel()
                await eventually(lambda: waiting() == 0)
            await eventually(r.idle)
            fleet_file(tmp_path, first.url)
            assert (await r.post(PATH, a_body(2))).status_code == 200
            assert len(first.seen(PATH)) == 1


async def test_each_worker_waits_and_the_leader_alone_calls(router_process, fleet_config, tmp_path) -> None:
    async with Webhook() as hook, engine() as first:
        config = fleet_config([], fleet=fleet_file(tmp_path), wake=wake(hook), workers=2)
        async with router_process(config) as r:
            await all_up(r)
            clients = [r.client() for _ in range(16)]  # a connection each, so that both workers get some
            tasks = [asyncio.create_task(c.post(PATH, json=a_body(n))) for n, c in enumerate(clients)]
            await eventually(lambda: hook.requests)

            async def waiting() -> float:
                return await r.metric("warmroute_wake_waiting_requests")

            async with asyncio.timeout(PATIENCE_S):
                while await waiting() < len(clients):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            assert len(hook.requests) == 1
            fleet_file(tmp_path, first.url)
            answers = await asyncio.gather(*tasks)
            assert {answer.status_code for answer in answers} == {200}
            assert len({answer.headers["x-warmroute-record"].partition("-")[0] for answer in answers}) == 2
            assert len(first.seen(PATH)) == len(clients)
            for client in clients:
                await client.aclose()
