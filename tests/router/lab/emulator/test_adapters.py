"""Loading and unloading LoRA adapters in an emulated engine, as in vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING."""

from __future__ import annotations

from typing import Any

import httpx

from tests.fakes.engines import engine

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
POET = {"lora_name": "poet", "lora_path": "/adapters/poet"}


def chat(model: str) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "an ode " * 40}], "max_tokens": 2}


async def test_without_the_setting_there_is_no_such_endpoint() -> None:
    async with engine() as fake, httpx.AsyncClient(base_url=fake.url) as client:
        assert (await client.post(LOAD, json=POET)).status_code == 404


async def test_an_adapter_answers_from_its_loading_to_its_unloading() -> None:
    async with engine(runtime_loras=True) as fake, httpx.AsyncClient(base_url=fake.url) as client:
        assert (await client.post("/v1/chat/completions", json=chat("poet"))).status_code == 404
        loaded = await client.post(LOAD, json=POET)
        assert (loaded.status_code, loaded.text) == (200, "Success: LoRA adapter 'poet' added successfully.")
        cards = {card["id"]: card for card in (await client.get("/v1/models")).json()["data"]}
        assert (cards["poet"]["root"], cards["poet"]["parent"]) == ("/adapters/poet", "warm-tiny")
        assert (await client.post("/v1/chat/completions", json=chat("poet"))).json()["model"] == "poet"
        assert (await client.post(UNLOAD, json={"lora_name": "poet"})).status_code == 200
        assert (await client.post("/v1/chat/completions", json=chat("poet"))).status_code == 404


async def test_what_vllm_refuses_is_refused() -> None:
    async with engine(runtime_loras=True) as fake, httpx.AsyncClient(base_url=fake.url) as client:
        assert (await client.post(LOAD, json={"lora_name": "poet"})).status_code == 400
        assert (await client.post(LOAD, json=POET | {"lora_path": "/missing/poet"})).status_code == 404
        assert (await client.post(LOAD, json=POET)).status_code == 200
        again = await client.post(LOAD, json=POET)
        assert (again.status_code, "already been loaded" in again.json()["error"]["message"]) == (400, True)
        assert (await client.post(UNLOAD, json={"lora_name": "nobody"})).status_code == 404
        assert (await client.post(UNLOAD, json={})).status_code == 400
