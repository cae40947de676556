"""The official clients against the router, with nothing changed but the base URL."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.fakes.engines import engine

pytestmark = pytest.mark.asyncio(loop_scope="module")

MODEL = "warm-tiny"
CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why is the sky blue? " * 20}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "of a city", "parameters": SCHEMA}}
NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routed(router_of_module: Any) -> AsyncIterator[Any]:
    """One router in front of four engines for all tests here."""
    async with engine() as a, engine() as b, engine() as c, engine() as d, router_of_module([a, b, c, d]) as running:
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def client(routed: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{routed.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="module")
async def claude(routed: Any) -> AsyncIterator[Any]:
    import anthropic  # here: it takes a second to load

    async with anthropic.AsyncAnthropic(base_url=routed.url, api_key="none", max_retries=0) as client:
        yield client


async def test_openai_sync(routed: Any) -> None:
    def talk() -> tuple[str, str]:
        with openai.OpenAI(base_url=f"{routed.url}/v1", api_key="none", max_retries=0) as client:
            whole = client.chat.completions.create(model=MODEL, messages=CHAT)
            pieces = client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
            return whole.choices[0].message.content, "".join(p.choices[0].delta.content or "" for p in pieces)

    whole, streamed = await asyncio.to_thread(talk)
    assert whole
    assert streamed == whole


async def test_openai_raw_response_carries_our_headers(routed: Any, client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=CHAT)
    answer = raw.parse()
    record = await routed.record(raw.headers["x-warmroute-record"])
    assert record["target"] == raw.headers["x-warmroute-target"]
    assert (record["status"], record["tokens_from"]) == (200, "local")
    assert record["prompt_tokens"] == answer.usage.prompt_tokens == record["prompt_tokens_counted"]
    assert record["output_tokens"] == answer.usage.completion_tokens == 16


async def test_openai_stream_helper(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(model=MODEL, messages=CHAT) as stream:
        final = await stream.get_final_completion()
    whole = await client.chat.completions.create(model=MODEL, messages=CHAT)
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.usage is None  # nobody asked


async def test_openai_tool_call_and_its_result(routed: Any, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=CHAT, tools=[WEATHER], tool_choice=NAMED)
    call = answer.choices[0].message.tool_calls[0]
    assert call.function.name == "weather"

    said = answer.choices[0].message.model_dump(exclude_none=True)
    result = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    raw = await client.chat.completions.with_raw_response.create(
        model=MODEL, messages=[*CHAT, said, result], tools=[WEATHER]
    )
    record = await routed.record(raw.headers["x-warmroute-record"])
    assert record["tokens_from"] == "local"
    assert record["prompt_tokens"] == record["prompt_tokens_counted"]


async def test_openai_tool_call_streamed(client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=CHAT, tools=[WEATHER], tool_choice="required", stream=True
    )
    calls = [call async for p in stream for choice in p.choices for call in choice.delta.tool_calls or []]
    whole = await client.chat.completions.create(model=MODEL, messages=CHAT, tools=[WEATHER], tool_choice="required")
    assert calls[0].function.name == "weather"
    assert "".join(call.function.arguments or "" for call in calls) == (
        whole.choices[0].message.tool_calls[0].function.arguments
    )


async def test_openai_completions(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(model=MODEL, prompt="Once upon a time", n=2, max_tokens=5)
    assert [choice.index for choice in whole.choices] == [0, 1]
    stream = await client.completions.create(model=MODEL, prompt="Once upon a time", max_tokens=5, stream=True)
    assert "".join([p.choices[0].text async for p in stream]) == whole.choices[0].text
    ids = await client.completions.create(model=MODEL, prompt=[5, 6, 7, 8], max_tokens=3)
    assert ids.usage.prompt_tokens == 4


async def test_openai_responses(routed: Any, client: openai.AsyncOpenAI) -> None:
    made = await client.responses.with_raw_response.create(model=MODEL, input="Tell me of routers. " * 20)
    target, first = made.headers["x-warmroute-target"], made.parse()
    assert first.output_text

    kept = await client.responses.retrieve(first.id)
    assert kept.output_text == first.output_text

    follow = await client.responses.with_raw_response.create(
        model=MODEL, input="And switches?", previous_response_id=first.id
    )
    assert follow.headers["x-warmroute-target"] == target

    async with client.responses.stream(model=MODEL, input="Tell me of routers. " * 20) as stream:
        types = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert (types[0], types[-1]) == ("response.created", "response.completed")
    assert final.output_text == first.output_text
    assert (await client.responses.retrieve(final.id)).id == final.id


async def test_openai_responses_stay_with_their_maker(routed: Any, client: openai.AsyncOpenAI) -> None:
    """Different prompts spread over the engines; what follows an answer goes to its maker, whatever the load."""
    makers = {}
    for number in range(20):
        made = await client.responses.with_raw_response.create(model=MODEL, input=f"topic {number}! " * 40)
        makers[made.parse().id] = made.headers["x-warmroute-target"]
    assert len(set(makers.values())) > 1
    for id, maker in makers.items():
        kept = await client.responses.with_raw_response.retrieve(id)
        follow = await client.responses.with_raw_response.create(model=MODEL, input="?", previous_response_id=id)
        assert kept.headers["x-warmroute-target"] == follow.headers["x-warmroute-target"] == maker


async def test_openai_background_response_is_cancelled(client: openai.AsyncOpenAI, router_of_module: Any) -> None:
    async with (
        engine(decode_ms_per_token=60_000) as slow,
        router_of_module([slow]) as r,
        openai.AsyncOpenAI(base_url=f"{r.url}/v1", api_key="none") as client,
    ):
        begun = await client.responses.create(model=MODEL, input="long", background=True)
        assert begun.status == "queued"
        assert (await client.responses.cancel(begun.id)).status == "cancelled"


async def test_openai_embeddings_and_models(client: openai.AsyncOpenAI) -> None:
    answer = await client.embeddings.create(model=MODEL, input=["one", "two"])
    assert [len(item.embedding) for item in answer.data] == [8, 8]
    assert [card.id for card in (await client.models.list()).data] == [MODEL]


async def test_openai_errors(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        await client.chat.completions.create(model="who", messages=CHAT)
    assert missing.value.code == "model_not_found"
    assert MODEL in missing.value.message
    with pytest.raises(openai.BadRequestError) as wrong:
        await client.chat.completions.create(model=MODEL, messages="hello")
    assert wrong.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve("resp_nobody")


async def test_anthropic(routed: Any, claude: Any) -> None:
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 12, "system": "Be brief.", "messages": CHAT[1:]}
    raw = await claude.messages.with_raw_response.create(**asked)
    whole = await raw.parse()
    record = await routed.record(raw.headers["x-warmroute-record"])
    usage = whole.usage
    assert record["prompt_tokens"] == usage.input_tokens + usage.cache_read_input_tokens
    assert record["prompt_tokens"] == record["prompt_tokens_counted"]
    counted = await claude.messages.count_tokens(model=MODEL, system="Be brief.", messages=CHAT[1:])
    assert counted.input_tokens == record["prompt_tokens"]

    async with claude.messages.stream(**asked) as stream:
        text = "".join([piece async for piece in stream.text_stream])
        final = await stream.get_final_message()
    assert text == whole.content[0].text
    assert final.stop_reason == "max_tokens"
    assert final.usage.cache_read_input_tokens > 0


async def test_anthropic_tools(claude: Any) -> None:
    tool = {"name": "weather", "description": "of a city", "input_schema": SCHEMA}
    answer = await claude.messages.create(
        model=MODEL,
        max_tokens=100,
        messages=CHAT[1:],
        tools=[tool],
        tool_choice={"type": "tool", "name": "weather"},
    )
    use = answer.content[0]
    assert (use.type, use.name, answer.stop_reason) == ("tool_use", "weather", "tool_use")
    assert set(use.input) == {"city"}
    result = {"type": "tool_result", "tool_use_id": use.id, "content": "21 degrees"}
    follow = await claude.messages.create(
        model=MODEL,
        max_tokens=10,
        tools=[tool],
        messages=[
            *CHAT[1:],
            {"role": "assistant", "content": [use.model_dump(include={"type", "id", "name", "input"})]},
            {"role": "user", "content": [result]},
        ],
    )
    assert follow.content[0].type == "text"


async def test_anthropic_errors(claude: Any) -> None:
    import anthropic

    with pytest.raises(anthropic.NotFoundError) as missing:
        await claude.messages.create(model="who", max_tokens=5, messages=CHAT[1:])
    assert missing.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as wrong:
        await claude.messages.create(model=MODEL, max_tokens=5, messages="hello")
    assert wrong.value.body["error"]["type"] == "invalid_request_error"


async def test_everything_was_given_back(routed: Any) -> None:
    """Last: after all these clients nothing is booked and nothing is held."""
    assert routed.idle()
    assert not [record["id"] for record in await routed.records(500) if not record["done"]]
