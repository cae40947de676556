"""Every refusal: its status, its words, and its shape in the client's own dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from tests.fakes.engines import engine, eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "warm-tiny"
CHAT, COMPLETIONS, RESPONSES, MESSAGES = BY_CACHE = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
USER = [{"role": "user", "content": "hello"}]
RIGHT: dict[str, dict[str, Any]] = {
    CHAT: {"model": MODEL, "messages": USER},
    COMPLETIONS: {"model": MODEL, "prompt": "hello"},
    RESPONSES: {"model": MODEL, "input": "hello"},
    MESSAGES: {"model": MODEL, "messages": USER, "max_tokens": 5},
}
PROMPT = {CHAT: "messages", COMPLETIONS: "prompt", RESPONSES: "input", MESSAGES: "messages"}
ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    503: "overloaded_error",
    504: "timeout_error",
}
OPENAI_KINDS = {
    400: "invalid_request_error",
    404: "not_found_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    502: "upstream_error",
    503: "overloaded_error",
    504: "timeout_error",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routed(router_of_module: Any) -> AsyncIterator[Any]:
    async with engine(loras=("poet",)) as fake, router_of_module([fake]) as running:
        yield running


def refusal(answer: httpx.Response, path: str, status: int) -> dict[str, Any]:
    """The error of an answer that must be refused with `status`, in the shape of `path`."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    told = answer.json()
    if path == MESSAGES:
        assert (told["type"], set(told["error"])) == ("error", {"type", "message"})
        assert told["error"]["type"] == ANTHROPIC_KINDS[status]
    else:
        assert set(told["error"]) == {"message", "type", "param", "code"}
        assert told["error"]["type"] == OPENAI_KINDS[status]
    assert told["error"]["message"]
    return dict(told["error"])


@pytest.mark.parametrize("path", BY_CACHE)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"hello",
        b"{",
        b'{"model": "warm-tiny",}',
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe{",
        b'{"model": "\xff"}',
        b"[" * 100_000,
    ],
    ids=["empty", "text", "open", "comma", "array", "null", "string", "utf-16", "bad utf-8", "deep"],
)
async def test_not_a_json_object(routed: Any, path: str, body: bytes) -> None:
    error = refusal(await routed.post(path, body), path, 400)
    assert "body" in error["message"]


@pytest.mark.parametrize("path", BY_CACHE)
@pytest.mark.parametrize("value", [None, 5, "hello", {"a": 1}], ids=["missing", "number", "string", "object"])
async def test_a_prompt_that_is_missing_or_of_the_wrong_type(routed: Any, path: str, value: Any) -> None:
    name = PROMPT[path]
    body = {key: field for key, field in RIGHT[path].items() if key != name} | ({} if value is None else {name: value})
    if path in (COMPLETIONS, RESPONSES) and value == "hello":
        return  # where a string is right
    error = refusal(await routed.post(path, body), path, 400)
    assert name in error["message"]
    assert error.get("param", name) == name


@pytest.mark.parametrize("path", BY_CACHE)
@pytest.mark.parametrize("model", [5, ["warm-tiny"], {}, True])
async def test_a_model_of_the_wrong_type(routed: Any, path: str, model: Any) -> None:
    error = refusal(await routed.post(path, RIGHT[path] | {"model": model}), path, 400)
    assert "model" in error["message"]
    assert error.get("param", "model") == "model"


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        (CHAT, "stream", "maybe"),
        (CHAT, "stream_options", [1]),
        (CHAT, "cache_salt", 5),
        (COMPLETIONS, "stream", "maybe"),
        (COMPLETIONS, "prompt", [1, "two"]),
        (RESPONSES, "previous_response_id", 7),
        (MESSAGES, "stream", 3),
    ],
)
async def test_other_fields_of_the_wrong_type(routed: Any, path: str, field: str, value: Any) -> None:
    body = RIGHT[path] | {field: value} | ({"stream": True} if field == "stream_options" else {})
    answer = await routed.post(path, body)
    error = refusal(answer, path, 400)
    assert field in error["message"]
    assert error.get("param", field) == field
    assert "x-warmroute-target" not in answer.headers  # refused here, by the router


@pytest.mark.parametrize("path", [*BY_CACHE, "/v1/embeddings"])
async def test_an_unknown_model_is_told_the_known_ones(routed: Any, path: str) -> None:
    error = refusal(await routed.post(path, RIGHT.get(path, {"input": "x"}) | {"model": "gpt"}), path, 404)
    assert "`gpt`" in error["message"]
    assert "poet, warm-tiny" in error["message"]


@pytest.mark.parametrize("path", BY_CACHE)
async def test_a_body_over_the_limit(router: Any, path: str) -> None:
    """Refused by its length before it is read, and as it comes where no length is told."""
    large = json.dumps(RIGHT[path] | {"padding": "x" * 2000}).encode()

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(large), 100):
            yield large[start : start + 100]

    async with engine() as a, router([a], limits={"body_bytes": 1000}) as r:
        assert "1000" in refusal(await r.post(path, large), path, 413)["message"]
        told = await r.http.post(path, content=pieces(), headers={"content-type": "application/json"})
        refusal(told, path, 413)
        assert (await r.post(path, RIGHT[path])).status_code == 200
        assert r.idle()


async def test_over_the_concurrency_limit(router: Any) -> None:
    async with engine(prefill_tokens_per_s=1) as slow, router([slow], limits={"concurrent": 5}) as r:
        waiting = [asyncio.create_task(r.post(CHAT, RIGHT[CHAT])) for _ in range(4)]  # the last place is for others
        await eventually(lambda: r.limiter.in_flight == 4)
        for path in BY_CACHE:
            answer = await r.post(path, RIGHT[path])
            refusal(answer, path, 429)
            assert answer.headers["retry-after"] == "1"
        assert (await r.http.get("/health")).status_code == 200  # no place is needed for that
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        await eventually(r.idle)


async def test_over_the_budget_for_bodies(router: Any) -> None:
    large = json.dumps(RIGHT[CHAT] | {"padding": "x" * 8000}).encode()
    async with engine(prefill_tokens_per_s=1) as slow, router([slow], limits={"body_budget_bytes": 10_000}) as r:
        first = asyncio.create_task(r.post(CHAT, large))
        await eventually(lambda: slow.gauges().running == 1)
        answer = await r.post(CHAT, large)
        assert refusal(answer, CHAT, 429)["code"] == "too_many_bytes"
        assert answer.headers["retry-after"] == "1"
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await eventually(r.idle)


async def test_nobody_there(router: Any) -> None:
    """No instance at all: nobody knows whether there is such a model, so the client may try again. One that is drained:
    the model is known, but nobody may be sent it.
    """
    async with router([]) as r:
        answer = await r.post(CHAT, RIGHT[CHAT])
        assert "no engine is ready" in refusal(answer, CHAT, 503)["message"]
        assert answer.headers["retry-after"] == "1"
    async with engine() as a, router([a]) as r:
        await r.admin.post(f"/admin/instances/{a.address}/drain")
        for path in BY_CACHE:
            answer = await r.post(path, RIGHT[path])
            refusal(answer, path, 503)
            assert answer.headers["retry-after"] == "1"
        assert not a.seen(CHAT)


async def test_nobody_to_be_reached(router: Any) -> None:
    async with engine() as a, router([a], fleet={"health": {"failures": 1000}}) as r:
        await a.server.__aexit__(None, None, None)
        answer = await r.post(CHAT, RIGHT[CHAT])
        refusal(answer, CHAT, 503)
        await a.server.__aenter__()


async def test_no_answer_in_time(router: Any) -> None:
    async with engine() as a, router([a], limits={"first_byte_timeout_s": 0.1}) as r:
        a.faults(freeze=True)
        for path in BY_CACHE:
            refusal(await r.post(path, RIGHT[path]), path, 504)
            refusal(await r.post(path, RIGHT[path] | {"stream": True}), path, 504)
        a.faults(freeze=False)
        assert r.idle()
        ends = [record["attempts"][0]["end"] for record in await r.records(8)]
        assert ends == ["deadline"] * 8
        assert {record["status"] for record in await r.records(8)} == {504}


async def test_a_poison_prompt_kills_two_and_no_more(router: Any) -> None:
    async with engine() as a, engine() as b, engine() as c, router([a, b, c]) as r:
        for fake in (a, b, c):
            fake.faults(die_before_first_byte=1.0)
        answer = await r.post(CHAT, RIGHT[CHAT])
        refusal(answer, CHAT, 502)
        assert sum(bool(fake.seen(CHAT)) for fake in (a, b, c)) == 2
        (record,) = await r.records(1)
        assert record["poison"]
        assert [attempt["end"] for attempt in record["attempts"]] == ["died", "died"]
        assert r.idle()


async def test_an_engine_that_dies_of_a_prompt_does_not_get_it_again(router: Any) -> None:
    """Not even over a fresh connection, which is for those that were closed while they were idle."""
    async with engine(prefill_tokens_per_s=1) as slow, router([slow]) as r:
        asking = asyncio.create_task(r.post(CHAT, RIGHT[CHAT]))
        await eventually(lambda: slow.gauges().running == 1)
        loop = asyncio.get_running_loop()
        working_until = loop.time() + 0.15
        await eventually(lambda: loop.time() > working_until)
        slow.restart()
        error = refusal(await asking, CHAT, 502)
        assert error["code"] == "engine_died"
        assert len(slow.seen(CHAT)) == 1


async def test_a_full_fleets_own_words_come_back(router: Any) -> None:
    async with engine() as a, engine() as b, router([a, b]) as r:
        for fake in (a, b):
            fake.faults(refuse=True)
        answer = await r.post(CHAT, RIGHT[CHAT])
        assert answer.status_code == 503
        assert "The engine takes no requests." in answer.text
        (record,) = await r.records(1)
        assert [attempt["end"] for attempt in record["attempts"]] == ["busy", "busy"]
        assert {i["targets"][0]["breaker"] for i in (await r.instances()).values()} == {"closed"}


async def test_refusals_are_counted(routed: Any) -> None:
    before = await routed.metric("warmroute_errors_total")
    await routed.post(CHAT, b"{")
    await routed.post(CHAT, RIGHT[CHAT] | {"model": "gpt"})
    assert await routed.metric("warmroute_errors_total") == before + 2
