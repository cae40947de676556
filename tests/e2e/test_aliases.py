"""Models by another name, over real sockets: what engines get, what clients see, and what the record says."""

from __future__ import annotations

import json
from collections import deque
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


# -- splits

SPLIT = {"stable": {"model": MODEL, "share": 50}, "canary": {"model": "other", "share": 50}}


async def ask(r: Any, session: str, **fields: Any) -> Any:
    return await r.post(PATH, chat(**fields), headers={"x-session-id": session})


async def test_a_session_stays_with_its_model_also_after_a_restart(router: Any) -> None:
    sessions = [f"s{n}" for n in range(10)]
    arms = []
    async with engine() as a, engine(model="other") as b:
        for _ in range(2):
            async with router([a, b], models={"chat": {"split": SPLIT}}) as r:
                told = [await r.record(await ask(r, session)) for session in sessions * 2]
                arms += [[one["model_arm"] for one in told[at : at + 10]] for at in (0, 10)]
                assert all(one["model"] == SPLIT[one["model_arm"]]["model"] for one in told)
                assert {one["alias"] for one in told} == {"chat"}
        assert all(one == arms[0] for one in arms)
        assert set(arms[0]) == {"stable", "canary"}


async def test_the_header_names_the_model_of_another_arm_than_the_first(router: Any) -> None:
    async with engine() as a, engine(model="other") as b, router([a, b], models={"chat": {"split": SPLIT}}) as r:
        answers = [await ask(r, f"s{n}") for n in range(10)]
        for answer in answers:
            record = await r.record(answer)
            named = answer.headers.get("x-warmroute-model")
            assert named == (None if record["model_arm"] == "stable" else "other")
            assert answer.json()["model"] == "chat"


async def test_revisions_of_one_model_get_their_shares(router: Any) -> None:
    arms = {"old": {"model": MODEL, "share": 50, "revision": "v1"}, "new": {"model": MODEL, "share": 50}}
    arms["new"]["revision"] = "v2"
    async with engine() as a, engine() as b:
        fleet = [{"url": a.url, "revision": "v1", "name": "a"}, {"url": b.url, "revision": "v2", "name": "b"}]
        async with router(fleet, models={"chat": {"split": arms}}) as r:
            told = [await r.record(await ask(r, f"s{n}")) for n in range(12)]
            assert {(one["model_arm"], one["target"]) for one in told} == {("old", "a/0"), ("new", "b/0")}


async def test_a_stored_response_goes_on_where_it_is(router: Any) -> None:
    async with engine() as a, engine(model="other") as b, router([a, b], models={"chat": {"split": SPLIT}}) as r:
        made = set()
        for number in range(8):
            first = await r.post("/v1/responses", {"model": "chat", "input": f"tale {number}"})
            record = await r.record(first)
            more = {"model": "chat", "input": "go on", "previous_response_id": first.json()["id"]}
            next_ = await r.record((await r.post("/v1/responses", more)).raise_for_status())
            assert (next_["target"], next_["model"]) == (record["target"], record["model"])
            made.add(record["model"])
        assert made == {MODEL, "other"}


async def test_a_canary_that_fails_loses_its_share_by_itself(router: Any) -> None:
    experiment = {"observe_s": 0.1, "guard": {"metric": "error_rate", "min_units": 5, "alpha": 0.05}}
    models = {"chat": {"split": SPLIT, "experiment": experiment}}
    async with engine() as a, engine(model="other") as b, router([a, b], models=models) as r:
        b.faults(error_rate=1.0)
        b.server.app.requests = deque()  # all of them, not only the last ones

        async def told() -> Json:
            return dict((await r.admin.get("/admin/experiment")).json()["models"]["chat"])

        number = 0
        while (split := await told())["rolled_back"] == []:
            assert number < 3000, split["sentences"]
            for _ in range(20):
                number += 1
                await ask(r, f"s{number}")
        assert split["rolled_back"] == ["canary"]
        assert [arm["model"] for arm in split["report"]["arms"]] == [MODEL, "other"]
        seen = len(b.seen(PATH))
        assert {(await ask(r, f"t{n}")).status_code for n in range(10)} == {200}
        assert len(b.seen(PATH)) == seen
        (entry, *_) = (await r.admin.get("/admin/audit")).json()["entries"]
        assert (entry["what"], entry["arm"]) == ("rollback of model chat", "canary")


# -- fallbacks

FALLS = {"chat": {"to": "other", "fallbacks": [MODEL]}}


async def test_a_model_without_an_instance_falls_back_and_says_so(router: Any) -> None:
    async with engine() as a, router([a], models=FALLS) as r:
        answer = await r.post(PATH, chat())
        assert answer.headers["x-warmroute-model"] == MODEL
        assert answer.json()["model"] == "chat"
        record = await r.record(answer)
        assert (record["alias"], record["model"], record["fallback"]) == ("chat", MODEL, "no_instance")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_model_whose_engines_are_all_full_falls_back_while_nothing_was_sent(router: Any, stream: bool) -> None:
    async with engine() as a, engine(model="other") as b, router([a, b], models=FALLS) as r:
        b.faults(refuse=True)
        answer = (await r.post(PATH, chat(stream=stream))).raise_for_status()
        assert answer.headers["x-warmroute-model"] == MODEL
        record = await r.record(answer)
        assert [attempt["end"] for attempt in record["attempts"]] == ["busy", "ok"]
        assert (record["model"], record["fallback"], record["status"]) == (MODEL, "busy", 200)
        assert record["prompt_tokens_counted"] == record["prompt_tokens"]
        assert sent(b)["model"] == "other"
        assert sent(a)["model"] == MODEL
        await r.hear()
        again = await r.record(await r.post(PATH, chat(MODEL)))
        assert again["attempts"][0]["predicted_tokens"] == again["cached_tokens"] > 0
        assert r.idle()


async def test_without_fallbacks_or_with_all_of_them_full_the_engines_refusal_is_the_answer(router: Any) -> None:
    models = FALLS | {"plain": {"to": "other"}}
    async with engine() as a, engine(model="other") as b, router([a, b], models=models) as r:
        a.faults(refuse=True)
        b.faults(refuse=True)
        assert (await r.post(PATH, chat())).status_code == 503
        assert len(a.seen(PATH)) == len(b.seen(PATH)) == 1
        assert (await r.post(PATH, chat("plain"))).status_code == 503
        assert len(a.seen(PATH)) == 1


async def test_a_request_of_which_an_engine_died_is_no_other_models(router: Any) -> None:
    async with engine() as a, engine(model="other") as b, router([a, b], models=FALLS) as r:
        b.faults(die_before_first_byte=1.0)
        assert (await r.post(PATH, chat())).status_code >= 500
        assert not a.seen(PATH)


async def test_what_a_fallback_answers_has_failed_for_the_arm(router: Any) -> None:
    models = {"chat": {"split": SPLIT, "fallbacks": [MODEL], "experiment": {"observe_s": 0.1}}}
    async with engine() as a, engine(model="other") as b, router([a, b], models=models) as r:
        b.faults(refuse=True)
        told = [await r.record(await ask(r, f"s{n}")) for n in range(12)]
        assert {one["status"] for one in told} == {200}
        fell = [one for one in told if one["fallback"] is not None]
        assert {one["model_arm"] for one in fell} == {"canary"}
        described = (await r.admin.get("/admin/experiment")).json()["models"]["chat"]
        failed = {arm["arm"]: arm["failed"] for arm in described["report"]["arms"]}
        assert failed == {"stable": 0, "canary": len(fell)}
