"""Streams that outlive their engine, through a whole router: the engine is cut at any byte, and others may not go on.

At temperature 0 an emulated engine says the same whoever said the beginning, so the bytes of a stream that was carried
on can be compared with those of one that nothing disturbed. All engines but the first have some load booked, so the
first one is chosen first; it is the one that fails.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from router.config.sections.listeners import LimitsConfig
from router.lab.emulator.vocabulary import Vocabulary
from router.prompt.tokenization.local_tokenizer import LocalTokenizer
from tests.e2e.conftest import MODEL, Router
from tests.fakes.engines import FakeEngine, engine, eventually

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
TOKENS = 6
MEMORY = LimitsConfig().continuation_bytes
DONE = b"data: [DONE]\n\n"
# Times differ from answer to answer, and so do hits: the next engine has other prompts in its cache.
VARIABLE = re.compile(rb'"created":\d+|"cached_tokens":\d+')
CUT_AT = 700  # bytes of a chat's stream: some tokens after the first
LOAD = {"scorers": [{"name": "least_requests"}], "picker": {"name": "best"}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
House = Callable[..., AbstractAsyncContextManager[Router]]


@pytest.fixture
def house(router: Any) -> House:
    """`house(engines, limits={...}, options of the engines...)`: a router that sends to the first engine first."""

    @asynccontextmanager
    async def start(
        count: int = 2,
        /,
        limits: dict[str, Any] | None = None,
        policies: dict[str, Any] | None = None,
        experiment: dict[str, Any] | None = None,
        tokenizers: dict[str, Any] | None = None,
        **options: Any,
    ) -> AsyncIterator[Router]:
        async with AsyncExitStack() as stack:
            fakes = [await stack.enter_async_context(engine(name=f"e{n}", seed=n, **options)) for n in range(count)]
            config = {
                "limits": {"continuation_bytes": MEMORY} | (limits or {}),
                "policies": {"load": LOAD} | (policies or {}),
                "active": "load",
                "experiment": experiment,
                **({} if tokenizers is None else {"tokenizers": tokenizers}),
                "fleet": {"breaker": {"failures": 1_000_000}},
            }
            running = await stack.enter_async_context(router(fakes, **config))
            for fake in fakes[1:]:
                stack.callback(target(running, fake).book(0, 1).release)
            yield running

    return start


def target(r: Router, fake: FakeEngine) -> Any:
    return next(i for i in r.core.fleet if i.config.url == fake.url).targets[0]


async def ask(r: Router, path: str = CHAT, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    text = "Tell me of the sea."
    said = {"messages": [{"role": "user", "content": text}]} if path == CHAT else {"prompt": text}
    body = {"model": MODEL, "stream": True, "max_tokens": TOKENS, "temperature": 0} | said | fields
    return await r.post(path, body, headers={"x-request-id": "the-same"} | (headers or {}))


def alike(answer: httpx.Response) -> bytes:
    """The stream without what differs from answer to answer."""
    return VARIABLE.sub(b"", answer.content)


def settled(r: Router) -> bool:
    """Nothing is under way, and only the load that `house` booked is in the books."""
    return (r.limiter.in_flight, r.limiter.held_bytes, r.booked) == (0, 0, len(r.engines) - 1)


def ends(record: dict[str, Any]) -> list[str]:
    return [attempt["end"] for attempt in record["attempts"]]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
@pytest.mark.parametrize("wants_usage", [True, False])
async def test_wherever_the_engine_is_cut_the_client_gets_the_whole_stream(
    house: House, path: str, wants_usage: bool
) -> None:
    asked = {"stream_options": {"include_usage": True}} if wants_usage else {}
    async with house() as r:
        undisturbed = await ask(r, path, **asked)
        raw = (await ask(r, path, return_token_ids=True, stream_options={"include_usage": True})).content
        boundaries = [match.end() for match in re.finditer(rb"\n\n", raw)]
        finished = boundaries[-3]  # then come usage and the last event
        tokens = boundaries[1:] if path == CHAT else boundaries  # a chat begins with its role
        for place in sorted({1, *boundaries[:-1], *range(7, len(raw), 307)}):
            r.engines[0].faults(die_after_bytes=place)
            answer = await ask(r, path, **asked)
            record = await r.record(answer)
            assert (record["uncontinued"], record["error"], record["prompt_tokens"], record["output_tokens"]) == (
                *(None, None),
                *((await r.record(undisturbed))["prompt_tokens"], TOKENS),
            )
            if place < finished:
                assert alike(answer) == alike(undisturbed), place
                assert ends(record) == ["continued", "ok"]
                assert record["attempts"][1]["continued_tokens"] == sum(place >= end for end in tokens)
            else:  # nothing is left to compute, and the router does not know the engine's other counts
                assert alike(answer)[: finished - 600] == alike(undisturbed)[: finished - 600]
                assert answer.content.count(b'"finish_reason":"length"') == 1
                assert answer.content.endswith(DONE)
                assert (b'"completion_tokens":%d' % TOKENS in answer.content) == wants_usage
                assert ends(record) == ["continued"]
        assert r.engines[0].seen(path)
        await eventually(lambda: settled(r))


async def broken(r: Router, cut_at: int = CUT_AT, **fields: Any) -> tuple[httpx.Response, dict[str, Any]]:
    """Return an answer whose first engine is cut in the middle, and its record."""
    r.engines[0].faults(die_after_bytes=cut_at)
    answer = await ask(r, **fields)
    record = await r.record(answer)
    await eventually(lambda: settled(r))
    return answer, record


def assert_clean_error(answer: httpx.Response) -> None:
    last = json.loads(answer.content.split(b"\n\n")[-2][6:])
    assert last["error"]["code"] == "engine_failed"
    assert b'token_ids":[' not in answer.content


async def test_an_engine_that_refuses_the_ids_says_nothing_and_another_one_is_tried(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "warmroute.web")
    async with house(3) as r:
        undisturbed = await ask(r)
        for fake in r.engines[1:]:
            fake.faults(refuse_ids=True)
        answer, record = await broken(r)
        assert_clean_error(answer)
        assert undisturbed.content.startswith(answer.content[: answer.content.rindex(b"data: {")][:40])
        assert (ends(record), record["uncontinued"]) == (["broken", "rejected", "rejected"], "no_target")
        failed, first = record["attempts"][0]["target"], f"record {record['id']}: the answer of"
        assert f"{first} {failed} broke off, not continued (no_target): the engine closed the connection" in caplog.text
        assert await r.metric("warmroute_broken_answers_total", outcome="no_target") == 1
        r.engines[2].faults(refuse_ids=False)
        answer, record = await broken(r)
        assert alike(answer) == alike(undisturbed)
        assert ends(record)[0] == "continued"
        assert ends(record)[-1] == "ok"
        assert record["attempts"][-1]["continued_by"] == "ids"
        by = f"continued by {record['attempts'][-1]['target']}"
        assert f"record {record['id']}: the answer of {record['attempts'][0]['target']} broke off, {by}" in caplog.text
        assert await r.metric("warmroute_broken_answers_total", outcome="continued") == 1


async def test_an_answer_is_carried_on_twice_and_not_more_often(house: House) -> None:
    async with house(4) as r:
        undisturbed = await ask(r)
        for fake in r.engines[1:]:
            fake.faults(die_after_bytes=CUT_AT)
        answer, record = await broken(r)
        assert_clean_error(answer)
        assert (ends(record), record["uncontinued"]) == (["continued", "continued", "broken"], "breaks")
        for fake in r.engines[2:]:
            fake.faults(die_after_bytes=None)
        answer, record = await broken(r)
        assert alike(answer) == alike(undisturbed)


async def test_a_client_or_the_configuration_may_do_without(house: House) -> None:
    async with house() as r:
        answer, record = await broken(r, headers={"x-warmroute-continue": "off"})
        assert_clean_error(answer)
        assert (ends(record), record["uncontinued"]) == (["broken"], "opted_out")
        assert json.loads(r.engines[0].seen(CHAT)[-1].body).get("return_token_ids") is None
        assert await r.metric("warmroute_errors_total", reason="broken") == 1
        answer, record = await broken(r, presence_penalty=0.5)
        assert record["uncontinued"] == "penalties"
    async with house(policies={"load": LOAD | {"continuation": False}}) as r:
        answer, record = await broken(r)
        assert_clean_error(answer)
        assert record["uncontinued"] == "off"
        assert json.loads(r.engines[0].seen(CHAT)[-1].body).get("return_token_ids") is None
    async with house(limits={"continuation_bytes": 0}) as r:
        answer, record = await broken(r)
        assert_clean_error(answer)
        assert record["uncontinued"] == "off"
    async with house(limits={"continuation_bytes": 100}) as r:
        answer, record = await broken(r)
        assert_clean_error(answer)
        assert record["uncontinued"] == "memory"


@pytest.mark.parametrize("tokenizers", [None, {}])
async def test_beside_tools_it_is_found_out_whether_all_text_was_sent(
    house: House, monkeypatch: pytest.MonkeyPatch, tokenizers: dict[str, Any] | None
) -> None:
    """By the router's own tokenizer, or else by an engine."""
    async with house(3, **({} if tokenizers is None else {"tokenizers": tokenizers})) as r:
        undisturbed = await ask(r, tools=TOOLS, tool_choice="none")
        raw = (await ask(r, tools=TOOLS, tool_choice="none", return_token_ids=True)).content
        cut_at = [match.end() for match in re.finditer(rb"\n\n", raw)][3]
        answer, record = await broken(r, cut_at, tools=TOOLS, tool_choice="none")
        assert alike(answer) == alike(undisturbed)
        assert (ends(record), record["uncontinued"]) == (["continued", "ok"], None)
        assert sum(len(fake.seen("/detokenize")) for fake in r.engines) == (0 if tokenizers is None else 1)
        for one in (Vocabulary, LocalTokenizer):
            monkeypatch.setattr(one, "decode", lambda self, ids: "it holds this back <")
        answer, record = await broken(r, cut_at, tools=TOOLS, tool_choice="none")
        assert_clean_error(answer)
        assert record["uncontinued"] == "parser"


async def test_stop_strings_need_no_one_to_be_asked(house: House) -> None:
    async with house() as r:
        undisturbed = await ask(r, stop=["never said"])
        answer, record = await broken(r, stop=["never said"])
        assert record["attempts"][1]["continued_tokens"] == 0, "as much could be held back"
        assert alike(answer) == alike(undisturbed)


async def test_one_of_two_policies_in_use_may_do_without(house: House) -> None:
    """Token ids are asked for because of the other one, and hidden all the same."""
    arms = {"on": {"policy": "load", "share": 50}, "off": {"policy": "never", "share": 50}}
    policies = {"never": LOAD | {"continuation": False}}
    async with house(policies=policies, experiment={"arms": arms, "seed": 3}) as r:
        found = {}
        for number in range(20):
            answer, record = await broken(r, user=f"user {number}")
            found[record["arm"]] = record["uncontinued"]
            assert b'"token_ids":[' not in answer.content
            assert json.loads(r.engines[0].seen(CHAT)[-1].body)["return_token_ids"]
        assert found == {"on": None, "off": "off"}


async def test_an_engine_core_that_dies_inside_a_stream_is_carried_on_too(house: House) -> None:
    """The HTTP server lives: it puts the error into the stream and ends it as if it were whole."""
    async with house(decode_ms_per_token=20.0) as r:
        undisturbed = await ask(r)
        asked = []

        async with r.http.stream(
            "POST",
            CHAT,
            headers={"content-type": "application/json", "x-request-id": "the-same"},
            content=json.dumps(json.loads(r.engines[0].seen(CHAT)[-1].body) | {"return_token_ids": False}),
        ) as answer:
            async for piece in answer.aiter_bytes():
                asked.append(piece)
                if len(asked) == 2:
                    r.engines[0].restart()
        record = await r.record(answer.headers["x-warmroute-record"])
        assert ends(record) == ["continued", "ok"]
        without_usage = VARIABLE.sub(b"", b"".join(asked)).split(b'"finish_reason":"length"')[0]
        assert without_usage == alike(undisturbed).split(b'"finish_reason":"length"')[0]
