"""Every request fault, and how it looks from outside. Event faults are in test_publisher.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx
import msgspec
import pytest

from router.lab.emulator.options import EngineFaults, EngineOptions
from tests.fakes.engines import FakeEngine, engine, eventually

BODY: dict[str, Any] = {"model": "warm-tiny", "prompt": list(range(40)), "max_tokens": 8}
STREAM = BODY | {"stream": True}
ENDLESS = STREAM | {"max_tokens": 10_000, "ignore_eos": True}
PATH = "/v1/completions"
CUT = (httpx.RemoteProtocolError, httpx.ReadError)
NO_ANSWER = httpx.Timeout(5.0, read=0.05)  # a busy machine may take longer to connect


async def rest(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines]


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    async with engine() as fake:
        yield fake


@pytest.fixture
async def http(fake: FakeEngine) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=fake.url, timeout=5) as client:
        yield client


async def test_error_rate(http: httpx.AsyncClient, fake: FakeEngine) -> None:
    fake.faults(error_rate=0.5)
    statuses = [(await http.post(PATH, json=BODY)).status_code for _ in range(60)]
    assert set(statuses) == {200, 500}
    assert 15 < statuses.count(500) < 45


async def test_refuse_and_unhealthy(http: httpx.AsyncClient, fake: FakeEngine) -> None:
    fake.faults(refuse=True, unhealthy=True)
    assert (await http.post(PATH, json=BODY)).status_code == 503
    assert (await http.get("/health")).status_code == 503
    fake.faults(refuse=False)
    assert (await http.post(PATH, json=BODY)).status_code == 200
    assert (await http.get("/health")).status_code == 503


async def test_a_full_queue_is_503() -> None:
    slow = engine(max_num_seqs=1, max_queued=1, decode_ms_per_token=1000)
    async with slow as fake, httpx.AsyncClient(base_url=fake.url) as http, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(http.post(PATH, json=BODY))
        await eventually(lambda: fake.gauges().running == 1)
        waiting = tasks.create_task(http.post(PATH, json=BODY))
        await eventually(lambda: fake.gauges().waiting == 1)
        assert (await http.post(PATH, json=BODY)).status_code == 503
        running.cancel()
        waiting.cancel()


async def test_frozen_it_answers_nothing_until_thawed(http: httpx.AsyncClient, fake: FakeEngine) -> None:
    fake.faults(freeze=True)
    for path in ("/health", "/metrics"):
        with pytest.raises(httpx.ReadTimeout):
            await http.get(path, timeout=NO_ANSWER)
    with pytest.raises(httpx.ReadTimeout):
        await http.post(PATH, json=BODY, timeout=NO_ANSWER)
    assert fake.gauges().prompt_tokens == 0
    assert (await http.post("/emulate/faults", json={"freeze": False})).json()["freeze"] is False
    assert (await http.post(PATH, json=BODY)).status_code == 200


async def test_some_paths_hang(http: httpx.AsyncClient, fake: FakeEngine) -> None:
    fake.faults(hang=["/health"])
    with pytest.raises(httpx.ReadTimeout):
        await http.get("/health", timeout=NO_ANSWER)
    assert (await http.post(PATH, json=BODY)).status_code == 200
    fake.faults(hang=[])
    assert (await http.get("/health")).status_code == 200


async def test_freezing_stops_answers_that_had_begun() -> None:
    async with (
        engine(decode_ms_per_token=5) as fake,
        httpx.AsyncClient(base_url=fake.url) as http,
        http.stream("POST", PATH, json=ENDLESS) as answer,
    ):
        await anext(answer.aiter_lines())
        fake.faults(freeze=True)
        await asyncio.sleep(0.02)  # the step under way may still end
        before = fake.gauges().generated_tokens
        await asyncio.sleep(0.05)  # ten steps' time
        assert fake.gauges().generated_tokens == before


async def test_slow() -> None:
    async with engine(decode_ms_per_token=2) as fake, httpx.AsyncClient(base_url=fake.url) as http:
        fake.faults(slow=20)
        begun = asyncio.get_running_loop().time()
        await http.post(PATH, json=BODY | {"max_tokens": 4})
        assert asyncio.get_running_loop().time() - begun > 0.11  # 3 tokens after the first, 40 ms each


@pytest.mark.parametrize("body", [BODY, STREAM])
async def test_dying_before_the_first_byte(http: httpx.AsyncClient, fake: FakeEngine, body: dict[str, Any]) -> None:
    fake.faults(die_before_first_byte=1.0)
    with pytest.raises(CUT):
        await http.post(PATH, json=body)
    await eventually(lambda: fake.gauges().running == 0)
    fake.faults(die_before_first_byte=0.0)
    assert (await http.post(PATH, json=body)).status_code == 200


async def test_dying_mid_stream(http: httpx.AsyncClient, fake: FakeEngine) -> None:
    fake.faults(die_mid_stream=1.0)
    async with http.stream("POST", PATH, json=STREAM) as answer:
        assert answer.status_code == 200
        lines = answer.aiter_lines()
        assert (await anext(lines)).startswith("data: {")
        with pytest.raises(CUT):
            await rest(lines)
    await eventually(lambda: fake.gauges().running == 0)


async def test_restarting_empties_the_cache_and_cuts_answers() -> None:
    async with engine(decode_ms_per_token=5) as fake, httpx.AsyncClient(base_url=fake.url) as http:
        await http.post(PATH, json=BODY)
        assert fake.gauges().cached_blocks == 2
        async with http.stream("POST", PATH, json=ENDLESS) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            assert (await http.post("/emulate/restart")).status_code == 200
            with pytest.raises(CUT):
                await rest(lines)
        assert fake.gauges().cached_blocks == 0
        answer = await http.post(PATH, json=BODY)
        assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_faults_are_changed_by_name(http: httpx.AsyncClient) -> None:
    await http.post("/emulate/faults", json={"drop_events": 0.25})
    faults = (await http.post("/emulate/faults", json={"slow": 2.0})).json()
    assert (faults["drop_events"], faults["slow"]) == (0.25, 2.0)
    assert (await http.get("/emulate/faults")).json() == faults


@pytest.mark.parametrize(
    ("change", "field"), [({"drop_event": 1}, "drop_event"), ({"error_rate": 1.5}, "error_rate"), ({"slow": 0}, "slow")]
)
async def test_wrong_faults_are_refused_by_name(http: httpx.AsyncClient, change: dict[str, Any], field: str) -> None:
    answer = await http.post("/emulate/faults", json=change)
    assert answer.status_code == 400
    assert field in answer.json()["error"]["message"]


def test_options_travel_as_json_with_their_faults() -> None:
    options = EngineOptions(name="a", loras=("x",), faults=EngineFaults(freeze=True))
    assert msgspec.json.decode(msgspec.json.encode(options), type=EngineOptions) == options


def test_the_context_is_what_the_cache_can_hold() -> None:
    assert EngineOptions(blocks=10, block_tokens=16).context_tokens == 160
    assert EngineOptions(blocks=100_000, block_tokens=16).context_tokens == 32768
    assert EngineOptions(max_model_len=99).context_tokens == 99
