"""LoRA adapters that are loaded when a request comes, over real sockets."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx

from router.backends.vllm.lora import LOAD, UNLOAD
from tests.e2e.conftest import MODEL, Json
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.patience import PATIENCE_S

PATH = "/v1/chat/completions"
ADAPTERS = {name: {"path": f"/adapters/{name}", "base": MODEL} for name in ("poet", "sql", "law")}


def chat(model: str, text: str = "an ode") -> Json:
    return {"model": model, "messages": [{"role": "user", "content": f"{text} " * 40}], "max_tokens": 4}


def posted(path: str, *fakes: FakeEngine) -> list[str]:
    return [json.loads(each.body)["lora_name"] for fake in fakes for each in fake.seen(path)]


async def test_it_is_loaded_once_for_all_that_wait_and_used_from_then_on(router: Any) -> None:
    async with (
        engine(runtime_loras=True) as a,
        engine(runtime_loras=True) as b,
        router([a, b], adapters=ADAPTERS) as r,
    ):
        listed = {card["id"]: card for card in (await r.http.get("/v1/models")).json()["data"]}
        assert (listed["poet"]["root"], listed["poet"]["parent"]) == ("/adapters/poet", MODEL)
        answers = await asyncio.gather(*(r.post(PATH, chat("poet", f"ode {n}")) for n in range(6)))
        assert {answer.status_code for answer in answers} == {200}
        assert {answer.json()["model"] for answer in answers} == {"poet"}
        assert posted(LOAD, a, b) == ["poet"]
        record = await r.record(answers[0])
        assert record["model"] == "poet"
        await r.post(PATH, chat("sql"))
        assert sorted((len(posted(LOAD, a)), len(posted(LOAD, b)))) == [1, 1], "the second one goes where fewer are"


async def test_the_coldest_makes_room_and_comes_back_when_it_is_asked_for(router: Any) -> None:
    loading = {"max_loaded": 2}
    async with engine(runtime_loras=True) as a, router([a], adapters=ADAPTERS, adapter_loading=loading) as r:
        for name in ("poet", "sql", "poet", "law", "sql"):
            (await r.post(PATH, chat(name))).raise_for_status()
        assert posted(LOAD, a) == ["poet", "sql", "law", "sql"]
        assert posted(UNLOAD, a) == ["sql", "poet"]
        cards = (await r.http.get(f"{a.url}/v1/models")).json()["data"]
        assert {card["id"] for card in cards} == {MODEL, "law", "sql"}


async def test_one_with_a_request_in_flight_stays_and_the_other_request_is_refused_for_now(router: Any) -> None:
    loading = {"max_loaded": 1, "retry_s": 0.001}
    slow = {"decode_ms_per_token": 20, "answer_tokens": 4000}
    async with engine(runtime_loras=True, **slow) as a, router([a], adapters=ADAPTERS, adapter_loading=loading) as r:
        body = chat("poet") | {"stream": True, "max_tokens": 4000}
        async with r.http.stream("POST", PATH, json=body) as answer:
            assert answer.status_code == 200
            refused = await r.post(PATH, chat("sql"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "adapter_not_loaded")
            assert not posted(UNLOAD, a)
        await eventually(r.idle)
        await eventually(lambda: not a.gauges().running_adapters)

        async def retry() -> httpx.Response:
            return await r.post(PATH, chat("sql"))

        async with asyncio.timeout(PATIENCE_S):
            while (await retry()).status_code == 503:
                pass
        assert posted(UNLOAD, a) == ["poet"]


async def test_an_adapter_that_cannot_be_loaded_is_not_tried_at_every_request(router: Any) -> None:
    adapters = {"poet": {"path": "/missing/poet", "base": MODEL}, "far": {"path": "/adapters/far", "base": "nobody"}}
    async with engine(runtime_loras=True) as a, router([a], adapters=adapters) as r:
        for _ in range(3):
            refused = await r.post(PATH, chat("poet"))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "adapter_not_loaded")
            assert refused.headers["retry-after"] == "10"
        assert posted(LOAD, a) == ["poet"]
        assert (await r.post(PATH, chat("far"))).status_code == 503
        assert (await r.post(PATH, chat(MODEL))).status_code == 200


async def test_an_engine_without_the_setting_answers_its_own_models(router: Any) -> None:
    async with engine() as a, router([a], adapters=ADAPTERS) as r:
        assert (await r.post(PATH, chat("poet"))).status_code == 503
        assert (await r.post(PATH, chat(MODEL))).status_code == 200


async def test_an_alias_may_stand_for_an_adapter(router: Any) -> None:
    models = {"verse": {"to": "poet", "fallbacks": [MODEL]}}
    async with engine(runtime_loras=True) as a, router([a], adapters=ADAPTERS, models=models) as r:
        answer = (await r.post(PATH, chat("verse"))).raise_for_status()
        assert answer.json()["model"] == "verse"
        record = await r.record(answer)
        assert (record["model"], record["fallback"]) == ("poet", None)
        assert posted(LOAD, a) == ["poet"]
