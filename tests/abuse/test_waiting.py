"""Thousands of requests that wait for admission: what each costs, and what happens when all leave at once."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from router.config.sections.admission import AdmissionConfig
from router.features.admission.waiting import RELEASED_AT_ONCE, AdmissionQueues, AdmissionStage
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Endpoint, Prompt, Text
from router.scheduling.conversations import Conversations
from tests.abuse.test_operator import started
from tests.e2e.conftest import MODEL, RouterProcess
from tests.router.features.admission.leased import enter
from tests.router.scheduling.test_scheduler import House

MB = 1_000_000
CLIENTS = 5_000
SESSIONS = 2_048
ADDRESSES = 5  # one client has a share of the requests in progress
SMALL = {"block_tokens": 16, "blocks": 64, "decode_ms_per_token": 1000.0, "answer_tokens": 600}


def queues_of(house: House, **settings: Any) -> AdmissionQueues:
    """Admission over one instance of 400 tokens."""
    config = AdmissionConfig(enabled=True, **settings)
    return AdmissionQueues(config, house.core, house.clock, lambda model, queue, end, s: None)


async def acquire(queues: AdmissionQueues, session: str, tokens: int = 300) -> Any:
    prompt = Prompt(Endpoint.COMPLETIONS, "/v1/completions", "m", b"{}", Text("x", True), session=session)
    known = TokenizedPrompt([0] * tokens, True, "given", {}, 0.0, 0.0)  # type: ignore[arg-type]
    return await enter(AdmissionStage(queues, Conversations()), prompt, known)


async def test_those_whose_wait_ends_together_are_released_a_few_at_a_time() -> None:
    house = House(count=1)
    queues = queues_of(house, max_wait_s=1.0)
    await acquire(queues, "first")
    waiting = [asyncio.create_task(acquire(queues, f"s{n}")) for n in range(10 * RELEASED_AT_ONCE)]
    await asyncio.sleep(0)
    house.clock.advance(2.0)
    ended = [0]
    for task in waiting:
        task.add_done_callback(lambda task: ended.__setitem__(0, ended[0] + 1))
    most = before = 0
    while before < len(waiting):
        await asyncio.sleep(0)
        most, before = max(most, ended[0] - before), ended[0]
    assert most <= 2 * RELEASED_AT_ONCE
    assert [type(task.exception()).__name__ for task in waiting] == ["TooBusy"] * len(waiting)
    (state,) = (admission.state() for admission in queues)
    assert (state.known, sum(state.queued.values())) == (1, 0)


@pytest.mark.abuse
async def test_a_request_costs_the_same_however_many_wait(measured) -> None:
    async def cost_us(count: int) -> tuple[float, float]:
        """Of an arrival, and of a client that leaves, while `count` wait."""
        queues = queues_of(House(count=1))
        await acquire(queues, "first")
        tasks = [asyncio.create_task(acquire(queues, f"s{n}")) for n in range(count)]
        began = time.process_time()
        await asyncio.sleep(0)
        arrived = time.process_time()
        for task in reversed(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return (arrived - began) / count * 1e6, (time.process_time() - arrived) / count * 1e6

    few, many = await cost_us(1_000), await cost_us(10_000)
    measured("10,000 wait: CPU of an arrival", many[0], 500, "us")
    measured("10,000 wait: CPU of a leave", many[1], 500, "us")
    measured("10,000 wait against 1,000: CPU of an arrival", many[0] / few[0], 5, "times")
    measured("10,000 wait against 1,000: CPU of a leave", many[1] / few[1], 5, "times")


async def send(r: RouterProcess, number: int) -> asyncio.StreamWriter:
    """One chat of a session of its own; its answer is not read."""
    host, port = r.url.removeprefix("http://").split(":")
    source = (f"127.0.0.{2 + number % ADDRESSES}", 0)
    _, writer = await asyncio.open_connection(host, int(port), local_addr=source)
    words = " ".join(f"{number} word {n}" for n in range(60))
    body = json.dumps({"model": MODEL, "messages": [{"role": "user", "content": words}], "max_tokens": 600}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: r\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}x-session-id: s{number}\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
    return writer


async def until_waiting(r: RouterProcess, enough: Callable[[int], bool]) -> None:
    """Wait until the number of requests that wait for admission is `enough`."""
    async with asyncio.timeout(60):
        while True:
            models = (await r.admin.get("/admin/admission")).json()["models"]
            if models and enough(sum(models[0]["queued"].values())):
                return
            await asyncio.sleep(0.05)


async def until_running_or_waiting(r: RouterProcess, count: int) -> None:
    """Wait until all workers together have `count` requests, those included that wait for admission."""
    async with asyncio.timeout(60):
        while True:
            running = await r.metric("warmroute_in_flight_requests")
            if running + await r.metric("warmroute_admission_waiting_requests") == count:
                return
            await asyncio.sleep(0.1)


async def until_capacity_is_known(r: RouterProcess) -> None:
    async with asyncio.timeout(30):
        known = False
        while not known:
            (instance,) = (await r.admin.get("/admin/instances")).json()["instances"]
            known = instance["targets"][0]["capacity_tokens"] is not None
            await asyncio.sleep(0.02)


@pytest.mark.abuse
@pytest.mark.parametrize("rule", ["fit", "thunderagent", "progress_ttl", "concurrency"])
async def test_2048_sessions_at_once_over_two_workers_leave_nothing(router_process, fleet_config, rule) -> None:
    sections = {"admission": {"enabled": True, "rule": {"name": rule}}, "limits": {"concurrent": 10_000}, "workers": 2}
    async with started(router_process, fleet_config, SMALL, **sections) as r:
        await until_capacity_is_known(r)
        writers = []
        try:
            for number in range(SESSIONS):
                writers.append(await send(r, number))
            await until_running_or_waiting(r, SESSIONS)
        finally:
            for writer in writers:
                writer.transport.abort()
        await until_running_or_waiting(r, 0)


@pytest.mark.abuse
async def test_thousands_that_wait_and_leave_at_once(router_process, fleet_config, measured) -> None:
    sections = {"admission": {"enabled": True}, "limits": {"concurrent": 10_000}}
    async with started(router_process, fleet_config, SMALL, **sections) as r:
        await until_capacity_is_known(r)
        before, writers = r.rss_bytes, []
        try:
            for number in range(CLIENTS):
                writers.append(await send(r, number))
            await until_waiting(r, lambda count: count >= CLIENTS * 0.99)
            assert "warmroute_admission_waiting_requests" in (await r.http.get("/metrics")).text
            measured("5,000 wait: memory of each", (r.rss_bytes - before) / CLIENTS / 1000, 60, "KB")
        finally:
            for writer in writers:
                writer.transport.abort()
        await until_waiting(r, lambda count: count == 0)
        assert await r.metric("warmroute_in_flight_requests") <= 4
