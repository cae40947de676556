"""Chats with images where no local tokenizer is configured: what stands before the first image decides."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.e2e.conftest import MODEL, Json
from tests.fakes.engines import FakeEngine, engine

CHAT = "/v1/chat/completions"
SECRET = "data:image/png;base64,Y2xpZW50J3M="


def see(text: str) -> Json:
    image = {"type": "image_url", "image_url": {"url": SECRET}}
    return {"role": "user", "content": [{"type": "text", "text": text}, image]}


async def turn(r: Any, messages: list[Json]) -> Json:
    body = {"model": MODEL, "messages": messages, "max_tokens": 4}
    answer = (await r.post(CHAT, body)).raise_for_status()
    messages.append({"role": "assistant", "content": answer.json()["choices"][0]["message"]["content"]})
    await r.hear()
    record: Json = await r.record(answer)
    return record


def asked(fake: FakeEngine) -> list[bytes]:
    return [exchange.body for exchange in fake.seen("/tokenize")]


async def test_a_warm_session_stays_when_an_image_comes(router: Any) -> None:
    async with engine(images=True) as a, engine(images=True) as b, router([a, b], tokenizers={}) as r:
        sessions = [[{"role": "user", "content": f"{number} tales of the sea " * 800}] for number in range(4)]
        first = [await turn(r, messages) for messages in sessions]
        assert len({record["target"] for record in first}) == 2, "each alone, they would be no test"
        for messages, before in zip(sessions, first, strict=True):
            messages.append(see("what is this?"))
            record = await turn(r, messages)
            assert record["target"] == before["target"]
            (attempt,) = record["attempts"]
            assert attempt["predicted_tokens"] == record["cached_tokens"] > 3000
            assert record["tokens_from"] == "remote"
            messages.append({"role": "user", "content": "and this?"})
            after = await turn(r, messages)
            assert after["target"] == before["target"]
            assert after["attempts"][0]["predicted_tokens"] > 3000
        assert len(asked(a)) + len(asked(b)) > 0
        assert not any(SECRET.encode() in body for fake in (a, b) for body in asked(fake))


@pytest.mark.parametrize("blind", ["an image first", "no answer of /tokenize"])
async def test_a_session_whose_tokens_are_unknown_stays_with_its_last_target(router: Any, blind: str) -> None:
    tokens = {} if blind == "an image first" else {"budget_ms": 100}
    async with engine(images=True) as a, engine(images=True) as b, router([a, b], tokenizers={}, tokens=tokens) as r:
        if blind != "an image first":
            a.faults(hang=["/tokenize"])
            b.faults(hang=["/tokenize"])
        first = see if blind == "an image first" else lambda text: {"role": "user", "content": text}
        sessions = [[first(f"{number} tales of the sea")] for number in range(4)]
        homes = []
        for messages in sessions:
            messages.append({"role": "user", "content": "a long tale of the sea " * 800})
            homes.append((await turn(r, messages))["target"])
        assert len({*homes}) == 2, "each alone, they would be no test"
        for _ in range(2):
            for messages, home in zip(sessions, homes, strict=True):
                messages.append({"role": "user", "content": "and this?"})
                record = await turn(r, messages)
                assert record["target"] == home
                assert record["attempts"][0]["expected_tokens"] > 3000
        messages, home = sessions[0], homes[0]
        r.core.forget_cache(home.partition("/")[0])
        messages.append({"role": "user", "content": "and now?"})
        record = await turn(r, messages)
        assert not record["attempts"][0]["expected_tokens"]


@pytest.mark.parametrize("images", [True, False])
async def test_what_an_engine_refuses_is_the_clients_to_know(router: Any, images: bool) -> None:
    async with engine(images=images) as a, router([a], tokenizers={}) as r:
        body = {"model": MODEL, "messages": [see("x " * 300)], "max_tokens": 4}
        answer = await r.post(CHAT, body)
        assert answer.status_code == (200 if images else 400)
        record = await r.record(answer)
        assert record["tokens_from"] == ("remote" if images else "tokenizer_refused")


async def test_explain_finds_the_same(router: Any) -> None:
    async with engine(images=True) as a, engine(images=True) as b, router([a, b], tokenizers={}) as r:
        messages = [{"role": "user", "content": "a tale of the sea " * 400}]
        before = await turn(r, messages)
        messages.append(see("what is this?"))
        body = {"model": MODEL, "messages": messages}
        told = (await r.admin.post("/admin/explain", params={"path": CHAT}, json=body)).raise_for_status().json()
        assert told["target"] == before["target"]
        assert told["tokens"]["from"] == "remote"
        assert told["overlap"]["expected_tokens"] > 1000


async def test_many_at_once(router: Any) -> None:
    async with engine(images=True) as a, engine(images=True) as b, router([a, b], tokenizers={}) as r:
        answers = await asyncio.gather(
            *(r.post(CHAT, {"model": MODEL, "messages": [see(f"{n} " * 50)], "max_tokens": 1}) for n in range(20))
        )
        assert {answer.status_code for answer in answers} == {200}
