"""Engines get a chat's token ids beside its text: who does, when not, and that nobody's answer ever depends on it."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from router.backends.token_ids.support import TRIAL_TEXT
from tests.e2e.chats import PATH, Said, ask, beside, chats, crowd
from tests.e2e.conftest import MODEL, TOKENIZER, Json, Router
from tests.e2e.test_pairs import alone, fleet, text_of
from tests.fakes.engines import FakeEngine, engine, eventually
from tests.patience import PATIENCE_S

HANDING: Any = {"tokens": {"token_id_passthrough": "auto"}}
QUESTION = [{"role": "user", "content": "What is the airspeed of an unladen swallow, and of which kind?"}]


def trials(fake: FakeEngine) -> int:
    """Chats that were only sent to see whether it takes ids."""
    return sum(is_trial(json.loads(call.body)) for call in fake.seen(PATH))


def is_trial(body: Json) -> bool:
    return str(body["messages"][0]["content"]) == TRIAL_TEXT


def given(fake: FakeEngine) -> list[list[int] | None]:
    """The ids beside each chat of a client."""
    bodies = [json.loads(call.body) for call in fake.seen(PATH)]
    clients = [body for body in bodies if not is_trial(body)]
    return [(body.get("kv_transfer_params") or {}).get("prompt_token_ids") for body in clients]


async def tried(router: Router) -> None:
    """Until every engine has said whether it takes ids."""

    async def told() -> bool:
        shown = (await router.instances()).values()
        return all(one["token_ids"] is not None and "not tried" not in one["token_ids"]["why"] for one in shown)

    async with asyncio.timeout(PATIENCE_S):
        while not await told():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def handed(router: Router, said: Said) -> list[bool]:
    return [attempt["token_id_passthrough"] for attempt in (await router.record(said.record))["attempts"]]


async def asked(router: Router, times: int, messages: Sequence[Json] = QUESTION, **fields: Any) -> list[Said]:
    said = [await ask(router, messages, **fields) for _ in range(times)]
    assert {(one.status, one.text) for one in said} == {(200, said[0].text)}
    return said


@pytest.mark.parametrize("stream", [False, True])
async def test_the_first_prompt_of_a_kind_shows_that_we_count_alike_and_the_next_ones_bring_ids(
    router: Any, stream: bool
) -> None:
    async with engine() as fake, router([fake], **HANDING) as r:
        await tried(r)
        first, second, third = await asked(r, 3, stream=stream)
        assert [await handed(r, one) for one in (first, second, third)] == [[False], [True], [True]]
        none, *ids = given(fake)
        assert none is None
        count = (await r.record(second.record))["prompt_tokens"]
        assert [len(each or ()) for each in ids] == [count, count]
        assert (await r.record(third.record))["cached_tokens"] == count // 16 * 16 - (16 if count % 16 == 0 else 0)
        assert await r.metric("warmroute_token_id_passthrough_prompts_total", model=MODEL) == 2
        assert await r.metric("warmroute_token_id_passthrough_skipped_total", reason="check") == 1
        assert await r.metric("warmroute_token_id_passthrough_supported") == 1
        assert trials(fake) == 1


async def test_every_64th_of_a_kind_goes_without_and_another_kind_begins_anew(router: Any) -> None:
    async with engine() as fake, router([fake], **HANDING) as r:
        await tried(r)
        await asked(r, 1 + 63 + 1 + 2)
        assert [ids is not None for ids in given(fake)] == [False, *[True] * 63, False, True, True]
        thinking = {"chat_template_kwargs": {"enable_thinking": False}}
        await asked(r, 2, **thinking)
        assert [ids is not None for ids in given(fake)][-2:] == [False, True]


async def test_off_asks_nobody_and_hands_nothing(router: Any) -> None:
    async with engine() as fake, router([fake], tokens={"token_id_passthrough": "off"}) as r:
        await asked(r, 3)
        assert given(fake) == [None] * 3
        assert trials(fake) == 0
        assert {one["token_ids"] for one in (await r.instances()).values()} == {None}


async def test_where_clients_may_set_the_field_it_is_theirs(router: Any) -> None:
    async with engine() as fake, router([fake], edge={"strip_fields": []}, **HANDING) as r:
        await asked(r, 3)
        assert given(fake) == [None] * 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"version": "0.31.0"}, "it does not look at token ids"),
        ({"faults": {"ignore_ids": True}}, "it does not look at token ids"),
        ({"faults": {"refuse_ids": True}}, "it refuses token ids (400)"),
    ],
)
async def test_who_was_not_seen_to_take_ids_gets_none(router: Any, options: Json, why: str) -> None:
    faults = options.pop("faults", {})
    async with engine(**options) as fake:
        fake.faults(**faults)
        async with router([fake], **HANDING) as r:
            await tried(r)
            (shown,) = (await r.instances()).values()
            assert shown["token_ids"] == {"takes": False, "why": why}
            await asked(r, 3)
            assert given(fake) == [None] * 3
            assert await r.metric("warmroute_token_id_passthrough_skipped_total", reason="unproven") == 3


@pytest.mark.parametrize("stream", [False, True])
async def test_an_engine_that_refuses_ids_after_all_is_asked_without_and_nobody_sees_it(
    router: Any, stream: bool
) -> None:
    async with engine() as fake, router([fake], **HANDING) as r:
        await tried(r)
        await asked(r, 2, stream=stream)
        fake.faults(refuse_ids=True)
        refused, after = await asked(r, 2, stream=stream)
        assert [ids is not None for ids in given(fake)] == [False, True, True, False, False]
        assert [await handed(r, one) for one in (refused, after)] == [[False], [False]]
        (shown,) = (await r.instances()).values()
        assert shown["token_ids"] == {"takes": False, "why": "it refused the ids of a prompt"}
        assert await r.metric("warmroute_token_id_passthrough_skipped_total", reason="refused") == 1
        assert r.idle()


async def test_a_client_s_own_mistake_is_told_as_it_would_be_without_ids(router: Any) -> None:
    async with engine() as fake, router([fake], **HANDING) as r:
        await tried(r)
        await asked(r, 2)
        said = await ask(r, QUESTION, n=1000)
        assert said.status == 400
        assert said.error is not None
        assert "n must be at most" in said.error["message"]
        assert await handed(r, await ask(r, QUESTION)) == [True], "the engine is none the worse for it"


async def test_an_engine_that_no_longer_looks_at_ids_is_found_out_where_it_matters(router: Any, tmp_path: Path) -> None:
    """As long as both render alike nothing is wrong; the first count that differs ends it."""
    async with engine(tokenizer=other_template(tmp_path)) as fake, router([fake], **HANDING) as r:
        await tried(r)
        await asked(r, 2)
        fake.faults(ignore_ids=True)
        await asked(r, 1)
        said = await ask(r, [{"role": "user", "content": SWALLOW}])
        assert said.ok
        (shown,) = (await r.instances()).values()
        assert not shown["token_ids"]["takes"]
        assert "ids, it counted" in shown["token_ids"]["why"]


SWALLOW = "Swallow! " + "An African one. " * 10


def other_template(folder: Path) -> str:
    """A model whose engines render one word more for whoever speaks of swallows first."""
    model = folder / "model"
    shutil.copytree(TOKENIZER, model)
    config = json.loads((model / "tokenizer_config.json").read_text())
    more = "{% if 'Swallow!' in messages[0]['content'] %}African or European?{% endif %}"
    config["chat_template"] = more + config["chat_template"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    return str(model)


async def test_a_wrong_rendering_is_found_by_the_64th_at_the_latest_and_ends_handing_until_proven_again(
    router: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine(tokenizer=other_template(tmp_path)) as fake, router([fake], **HANDING) as r:
        await tried(r)
        await asked(r, 1)
        wrong = [{"role": "user", "content": SWALLOW}]
        said = [await ask(r, wrong) for _ in range(64)]
        assert [ids is not None for ids in given(fake)] == [False, *[True] * 63, False]
        record = await r.record(said[-1].record)
        assert record["prompt_tokens"] > record["prompt_tokens_counted"], "and until then all answers agreed with us"
        assert "not used before a new proof there" in caplog.text
        await eventually(lambda: r.app.core.tokenization.report()[MODEL].proofs == 2)
        assert r.app.core.tokenization.report()[MODEL].source == "local", "the probes speak of no swallows"
        first, second = await asked(r, 2)
        assert [await handed(r, one) for one in (first, second)] == [[False], [True]], "kinds are seen anew as well"
        caplog.clear()
        await ask(r, [{"role": "system", "content": SWALLOW}, *QUESTION])  # of a kind of its own, so without ids
        assert await handed(r, (await asked(r, 1))[0]) == [False]
        assert r.app.core.tokenization.report()[MODEL].source == "local", "one client's prompts cost no other its ids"
        assert "not used before" not in caplog.text


async def test_prompts_that_fill_the_context_are_the_engine_s_to_judge(router: Any) -> None:
    async with engine(max_model_len=64, blocks=64) as fake, router([fake], **HANDING) as r:
        await tried(r)
        await asked(r, 2, max_tokens=1)
        filling = [{"role": "user", "content": "word " * 40}]
        count = (await r.record((await ask(r, filling, max_tokens=1)).record))["prompt_tokens_counted"]
        short = [{"role": "user", "content": "word " * (40 + 63 - count)}]
        full = [{"role": "user", "content": "word " * (40 + 64 - count)}]
        assert await handed(r, await ask(r, short, max_tokens=1)) == [True]
        said = await ask(r, full, max_tokens=1)
        assert said.status == 400
        assert await handed(r, said) == [False]
        assert await r.metric("warmroute_token_id_passthrough_skipped_total", reason="length") >= 1
        assert [len(ids) for ids in given(fake) if ids is not None][-1] == 63


@pytest.mark.parametrize(
    "fields",
    [
        {"echo": True},
        {"truncate_prompt_tokens": 5},
        {"chat_template": "{{ messages }}"},
        {"prompt_logprobs": 1},
        {"return_prompt_text": True},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
    ],
)
async def test_what_the_engine_must_render_itself_brings_no_ids(router: Any, fields: Json) -> None:
    async with engine() as fake, router([fake], **HANDING) as r:
        await tried(r)
        await asked(r, 2)
        await r.post(PATH, {"model": MODEL, "messages": QUESTION, "max_tokens": 2} | fields)
        body = json.loads(fake.seen(PATH)[-1].body)
        assert "kv_transfer_params" not in body
        assert await handed(r, await ask(r, QUESTION)) == [True], "others of the kind do"


@pytest.mark.parametrize("protocol", ["mooncake", "nixl"])
@pytest.mark.parametrize("refusing", ["", "decode", "prefill"])
async def test_both_halves_of_a_pair_get_them(router: Any, protocol: str, refusing: str) -> None:
    roles = {"p": "prefill", "d": "decode"}
    long: Json = {"messages": [{"role": "user", "content": "It was the best of times. " * 30}], "max_tokens": 12}
    async with fleet(lambda *a, **k: router(*a, **k, **HANDING), protocol, roles=roles) as pair:
        r = pair.router
        await tried(r)
        await asked(r, 1)
        for name, role in roles.items():
            pair.fakes[name].faults(refuse_ids=role == refusing)
        answer = await r.post(PATH, {"model": MODEL, **long})
        assert text_of(answer.json()) == await alone(PATH, long)
        record = await r.record(answer)
        (attempt,) = record["attempts"]
        half = attempt["prefill"]
        assert (attempt["token_id_passthrough"], half["token_id_passthrough"]) == (
            refusing != "decode",
            refusing != "prefill",
        )
        ids = {name: given(fake) for name, fake in pair.fakes.items()}
        opening = ids["d"].pop(0)
        assert opening is None
        assert [len(each) for name in "pd" for each in ids[name] if each is not None] == [record["prompt_tokens"]] * 2
        without = [roles[name] for name in ids for each in ids[name] if each is None]
        assert without == [refusing] * bool(refusing), "asked once more, without"
        await eventually(pair.idle)


async def test_a_crowd_that_engines_leave_and_join_is_answered_as_ever(router: Any) -> None:
    async with engine(name="a") as a, engine(name="b") as b, router([a, b], **HANDING) as r:
        await tried(r)

        async def upset() -> None:
            for turn in range(1000):
                a.faults(refuse_ids=turn % 3 == 0)
                b.faults(ignore_ids=turn % 2 == 0, refuse_ids=turn % 5 == 0)
                await asyncio.sleep(0.01)

        async with beside(upset()):
            said = await crowd(chats(r, "crowd", 12), 6)
        assert all(one.ok for one in said)
        records = [await r.record(one.record) for one in said]
        assert {record["prompt_tokens"] - record["prompt_tokens_counted"] for record in records} == {0}
        assert sum(ids is not None for fake in (a, b) for ids in given(fake)) > 0
        await eventually(r.idle)
