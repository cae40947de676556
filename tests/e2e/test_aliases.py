"""Models by another name, over real sockets: what engines get, what clients see, and what the record says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.conftest import MODEL, Json
from tests.fakes.engines import FakeEngine, engine

PATH = "/v1/chat/completions"


def chat(model: str = "chat", **fields: Any) -> Json:
    return {
        "model": model,
        "messages": [{"role": "user", "content": "a tale of ships " * 20}],
        "max_tokens": 4,
    } | fields


def sent(fake: FakeEngine, path: str = PATH) -> Json:
    return dict(json.loads(fake.seen(path)[-1].body))


async def test_engines_get_the_model_and_clients_see_the_alias(router: Any) -> None:
    async with engine() as a, router([a], models={"chat": {"to": MODEL}}) as r:
        answer = await r.post(PATH, chat())
        assert answer.json()["model"] == "chat"
        assert sent(a) == chat(MODEL)
        record = await r.record(answer)
        assert (record["alias"], record["model"]) == ("chat", MODEL)
        assert record["tokens_from"] == "local"
        assert record["prompt_tokens_counted"] == record["prompt_tokens"]
        assert "x-warmroute-model" not in answer.headers
        await r.hear()
        again = await r.record(await r.post(PATH, chat(MODEL)))
        assert again["alias"] is None
        assert again["attempts"][0]["predicted_tokens"] == again["cached_tokens"] > 0, "one model has one cache"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PATH, chat(stream=True)),
        ("/v1/completions", {"model": "chat", "prompt": "a tale", "stream": True, "max_tokens": 4}),
        ("/v1/messages", chat(stream=True)),
        ("/v1/responses", {"model": "chat", "input": "a tale", "stream": True}),
        ("/v1/embeddings", {"model": "chat", "input": "a tale"}),
    ],
)
@pytest.mark.parametrize("continuation", [0, 1 << 20])
async def test_no_answer_names_the_model(router: Any, path: str, body: Json, continuation: int) -> None:
    limits = {"continuation_bytes": continuation}
    async with engine() as a, router([a], models={"chat": {"to": MODEL}}, limits=limits) as r:
        answer = (await r.post(path, body)).raise_for_status()
        assert f'"model":"{MODEL}"' not in answer.text
        assert '"model":"chat"' in answer.text
        assert sent(a, path)["model"] == MODEL


async def test_defaults_and_caps_reach_the_engine(router: Any) -> None:
    alias = {"to": MODEL, "defaults": {"temperature": 0.5, "top_p": 0.9}, "caps": {"max_tokens": 3}}
    async with engine() as a, router([a], models={"chat": alias}) as r:
        answer = await r.post(PATH, chat(max_tokens=50, top_p=0.1))
        assert answer.json()["usage"]["completion_tokens"] == 3
        assert {name: sent(a)[name] for name in ("temperature", "top_p", "max_tokens")} == {
            "temperature": 0.5,
            "top_p": 0.1,
            "max_tokens": 3,
        }
        refused = await r.post(PATH, chat(max_tokens="50"))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "max_tokens")


async def test_models_lists_aliases_and_an_unknown_name_is_refused(router: Any) -> None:
    async with engine() as a, router([a], models={"chat": {"to": MODEL}, "later": {"to": "other"}}) as r:
        cards = {card["id"]: card for card in (await r.http.get("/v1/models")).json()["data"]}
        assert cards.keys() == {MODEL, "chat"}
        assert (cards["chat"]["root"], cards["chat"]["max_model_len"]) == (MODEL, cards[MODEL]["max_model_len"])
        assert (await r.post(PATH, chat("later"))).status_code == 404
        assert (await r.post(PATH, chat("nothing"))).status_code == 404


async def test_explain_answers_for_the_model(router: Any) -> None:
    async with engine() as a, router([a], models={"chat": {"to": MODEL}}) as r:
        answer = await r.admin.post("/admin/explain", params={"path": PATH}, json=chat())
        assert answer.json()["model"] == MODEL
        assert not a.seen(PATH)
