"""Odd and wrong requests get from an emulated engine what a real one answered."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from tests.fakes.engines import engine
from tests.suites.engine_answers import ask, recorded

CHAT = "/v1/chat/completions"
MODEL = "tiny"
PREFLIGHT = {"origin": "https://app.example", "access-control-request-method": "POST"}


async def test_as_a_real_engine_answers() -> None:
    cases = recorded()
    assert len(cases) > 300
    async with engine(model=MODEL, loras=("lora",), max_model_len=8192) as fake:
        host, _, port = fake.address.partition(":")
        for case in cases:
            assert await asyncio.to_thread(ask, host, int(port), case) == case.answer, case


@pytest.mark.parametrize("field", ["model", "stream", "messages"])
async def test_messages_name_the_field_and_the_value(field: str) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], field: 5}
    async with engine(model=MODEL) as fake, httpx.AsyncClient(base_url=fake.url) as http:
        error = (await http.post(CHAT, json=body)).json()["error"]
    assert error["message"].startswith("1 validation error:\n  {'type': ")
    assert f"'loc': 'body.{field}'" in error["message"]
    assert "'input': '5'}" in error["message"]


async def test_no_message_shows_more_of_the_request_than_ten_short_values() -> None:
    body = {"model": "m" * 5000, "messages": ["x" * 5000] * 50}
    async with engine(model=MODEL) as fake, httpx.AsyncClient(base_url=fake.url) as http:
        error = (await http.post(CHAT, json=body)).json()["error"]
    assert len(error["message"]) < 5000
    assert error["message"].endswith("more errors")


async def test_origins() -> None:
    async with engine(allowed_origins=("*",)) as fake, httpx.AsyncClient(base_url=fake.url) as http:
        asked = await http.options(CHAT, headers=PREFLIGHT | {"access-control-request-headers": "x-a"})
        assert (asked.status_code, asked.text) == (200, "OK")
        assert asked.headers["access-control-allow-origin"] == "*"
        assert asked.headers["access-control-allow-headers"] == "x-a"
        assert (await http.get("/nope", headers=PREFLIGHT)).headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-origin" not in (await http.get("/v1/models")).headers
    async with engine(allowed_origins=("https://app.example",)) as fake, httpx.AsyncClient(base_url=fake.url) as http:
        assert (await http.options(CHAT, headers=PREFLIGHT)).headers["access-control-allow-origin"] == PREFLIGHT[
            "origin"
        ]
        other = await http.options(CHAT, headers=PREFLIGHT | {"origin": "https://other.example"})
        assert (other.status_code, other.text) == (400, "Disallowed CORS origin")


@pytest.mark.parametrize("path", ["/v1/responses", "/nope"])
async def test_no_websockets(path: str) -> None:
    async with engine() as fake, httpx.AsyncClient(base_url=fake.url) as http:
        answer = await http.get(path, headers={"connection": "Upgrade", "upgrade": "websocket"})
        assert (answer.status_code, answer.content, answer.headers["connection"]) == (403, b"", "close")
