"""The official clients against an emulated engine: sync, async, streaming, tools, raw answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import anthropic
import openai
import pytest

from tests.fakes.engines import FakeEngine, engine, eventually

MODEL = "warm-tiny"
CHAT: Any = [{"role": "system", "content": "You are brief. " * 10}, {"role": "user", "content": "Hello there."}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": PARAMETERS}}]


@pytest.fixture
async def fake() -> AsyncIterator[FakeEngine]:
    async with engine() as fake:
        yield fake


@pytest.fixture
async def client(fake: FakeEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{fake.url}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def claude(fake: FakeEngine) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=fake.url, api_key="any", max_retries=0) as client:
        yield client


# -- chat


async def test_chat(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=5)
    assert len((answer.choices[0].message.content or "").split()) == 5
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 5
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 5
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


async def test_an_answer_without_a_limit_ends_by_itself(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=CHAT)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16  # the last one is the end token, without text
    assert len((answer.choices[0].message.content or "").split()) == 15


async def test_the_second_turn_hits_the_first_with_its_answer(client: openai.AsyncOpenAI) -> None:
    first = await client.chat.completions.create(model=MODEL, messages=CHAT)
    assert first.usage is not None
    said = {"role": "assistant", "content": first.choices[0].message.content}
    second = await client.chat.completions.create(model=MODEL, messages=[*CHAT, said, CHAT[1]], max_tokens=1)
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    # all but the last of the first turn's tokens were computed, in blocks of 16
    assert second.usage.prompt_tokens_details.cached_tokens == (first.usage.total_tokens - 1) // 16 * 16


@pytest.mark.parametrize("usage", [False, True])
async def test_chat_stream(client: openai.AsyncOpenAI, usage: bool) -> None:
    options: Any = {"stream_options": {"include_usage": True}} if usage else {}
    stream = await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=4, stream=True, **options)
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert [chunk.choices[0].finish_reason for chunk in chunks[:5]] == [None, None, None, None, "length"]
    assert all(chunk.choices[0].delta.content for chunk in chunks[1:5])
    assert len(chunks) == 5 + usage
    if usage:
        assert chunks[-1].choices == []
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 4
        assert chunks[-1].usage.prompt_tokens_details is not None


async def test_streamed_and_whole_say_the_same(client: openai.AsyncOpenAI) -> None:
    whole = await client.chat.completions.create(model=MODEL, messages=CHAT)
    stream = await client.chat.completions.create(model=MODEL, messages=CHAT, stream=True)
    text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])
    assert text == whole.choices[0].message.content


async def test_several_choices_share_the_prompt(client: openai.AsyncOpenAI, fake: FakeEngine) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=CHAT, n=3, max_tokens=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 9


@pytest.mark.parametrize(
    ("choice", "finish"),
    [("required", "tool_calls"), ({"type": "function", "function": {"name": "weather"}}, "stop")],
)
async def test_a_forced_tool_call(client: openai.AsyncOpenAI, choice: Any, finish: str) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=CHAT, tools=TOOLS, tool_choice=choice, max_tokens=200
    )
    assert answer.choices[0].finish_reason == finish
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments) == {"city": "warm"}


async def test_a_forced_tool_call_streamed(client: openai.AsyncOpenAI) -> None:
    async with client.chat.completions.stream(
        model=MODEL, messages=CHAT, tools=TOOLS, tool_choice="required", max_tokens=200
    ) as stream:
        final = await stream.get_final_completion()
    (call,) = final.choices[0].message.tool_calls or []
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "warm"})
    assert final.choices[0].finish_reason == "tool_calls"


async def test_tool_results_are_part_of_the_next_prompt(client: openai.AsyncOpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Ulm"}'}}
    told: Any = [
        *CHAT,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
    ]
    short = await client.chat.completions.create(model=MODEL, messages=CHAT, tools=TOOLS, max_tokens=1)
    long = await client.chat.completions.create(model=MODEL, messages=told, tools=TOOLS, max_tokens=1)
    assert short.usage is not None
    assert long.usage is not None
    assert long.usage.prompt_tokens > short.usage.prompt_tokens
    assert long.usage.prompt_tokens_details is not None
    assert (long.usage.prompt_tokens_details.cached_tokens or 0) > 0


async def test_raw_response(client: openai.AsyncOpenAI) -> None:
    raw = await client.chat.completions.with_raw_response.create(model=MODEL, messages=CHAT, max_tokens=2)
    assert raw.status_code == 200
    assert raw.headers["content-type"] == "application/json"
    assert raw.parse().model == MODEL


def test_the_synchronous_client() -> None:
    async def run() -> None:
        async with engine() as fake:
            await asyncio.to_thread(ask, fake.url)

    def ask(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="any") as client:
            assert client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=2).choices
            stream = client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=2, stream=True)
            assert len(list(stream)) == 3
            assert [model.id for model in client.models.list()] == [MODEL]

    asyncio.run(run())


async def test_leaving_a_stream_cancels_the_engines_work(client: openai.AsyncOpenAI, fake: FakeEngine) -> None:
    stream = await client.chat.completions.create(
        model=MODEL, messages=CHAT, max_tokens=30_000, stream=True, extra_body={"ignore_eos": True}
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    assert fake.gauges().running == 1
    await stream.close()
    await eventually(lambda: fake.gauges().running == 0)
    assert fake.gauges().cancelled == 1


# -- completions, responses, messages


async def test_completions_of_text_ids_and_several_prompts(client: openai.AsyncOpenAI) -> None:
    one = await client.completions.create(model=MODEL, prompt="hello world", max_tokens=3)
    assert one.usage is not None
    ids = await client.completions.create(model=MODEL, prompt=[5, 6, 7], max_tokens=3)
    assert ids.usage is not None
    assert ids.usage.prompt_tokens == 3
    both = await client.completions.create(model=MODEL, prompt=["hello world", "goodbye"], max_tokens=3)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[0].text == one.choices[0].text


async def test_completions_stream(client: openai.AsyncOpenAI) -> None:
    stream = await client.completions.create(
        model=MODEL, prompt="hello", max_tokens=3, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    assert [chunk.choices[0].finish_reason for chunk in chunks[:3]] == [None, None, "length"]
    assert chunks[3].usage is not None
    assert chunks[3].usage.completion_tokens == 3


async def test_responses_and_the_conversation_they_keep(client: openai.AsyncOpenAI) -> None:
    first = await client.responses.create(model=MODEL, input="Hello there, how are you today?", instructions="Brief.")
    assert first.status == "completed"
    assert first.output_text
    assert (await client.responses.retrieve(first.id)).output_text == first.output_text
    second = await client.responses.create(model=MODEL, input="And now?", previous_response_id=first.id)
    assert second.usage is not None
    assert first.usage is not None
    assert second.usage.input_tokens > first.usage.input_tokens
    with pytest.raises(openai.NotFoundError):
        await client.responses.create(model=MODEL, input="And now?", previous_response_id="resp_nobody")


async def test_responses_stream(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="Hello", max_output_tokens=3) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds.count("response.output_text.delta") == 3
    assert kinds[-1] == "response.completed"
    assert len(final.output_text.split()) == 3
    assert final.usage is not None
    assert final.usage.output_tokens == 3


async def test_a_forced_tool_call_in_responses(client: openai.AsyncOpenAI) -> None:
    tools: Any = [{"type": "function", "name": "weather", "parameters": PARAMETERS, "strict": True}]
    asked: Any = {"model": MODEL, "input": "Hi", "tools": tools, "tool_choice": "required"}
    whole = await client.responses.create(**asked)
    async with client.responses.stream(**asked) as stream:
        streamed = await stream.get_final_response()
    for answer in (whole, streamed):
        (call,) = answer.output
        assert call.type == "function_call"
        assert (call.name, json.loads(call.arguments)) == ("weather", {"city": "warm"})


async def test_a_background_response_can_be_waited_for_and_cancelled(
    client: openai.AsyncOpenAI, fake: FakeEngine
) -> None:
    asked: Any = {"model": MODEL, "input": "Hi", "background": True}
    begun = await client.responses.create(**asked)
    assert begun.status == "queued"
    await eventually(lambda: fake.gauges().stopped == 1)
    assert (await client.responses.retrieve(begun.id)).status == "completed"
    long = await client.responses.create(**asked, max_output_tokens=30_000, extra_body={"ignore_eos": True})
    assert (await client.responses.cancel(long.id)).status == "cancelled"
    await eventually(lambda: fake.gauges().running == 0)
    with pytest.raises(openai.BadRequestError):
        await client.responses.cancel(begun.id)


async def test_messages(claude: anthropic.AsyncAnthropic) -> None:
    asked: Any = {"model": MODEL, "system": "Be brief. " * 20, "messages": CHAT[1:], "max_tokens": 100}
    first = await claude.messages.create(**asked)
    assert first.stop_reason == "end_turn"
    assert first.content[0].type == "text"
    assert first.usage.cache_read_input_tokens == 0
    second = await claude.messages.create(**asked)
    cached = second.usage.cache_read_input_tokens or 0
    assert cached == (first.usage.input_tokens - 1) // 16 * 16
    assert second.usage.input_tokens + cached == first.usage.input_tokens
    counted = await claude.messages.count_tokens(model=MODEL, system=asked["system"], messages=asked["messages"])
    assert counted.input_tokens == first.usage.input_tokens


async def test_messages_stream(claude: anthropic.AsyncAnthropic) -> None:
    async with claude.messages.stream(model=MODEL, messages=CHAT[1:], max_tokens=3) as stream:
        kinds = [event.type async for event in stream if event.type not in ("text", "input_json")]
        final = await stream.get_final_message()
    assert kinds == [
        "message_start",
        "content_block_start",
        *["content_block_delta"] * 3,
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert final.stop_reason == "max_tokens"
    assert final.usage.output_tokens == 3


async def test_a_forced_tool_call_in_messages(claude: anthropic.AsyncAnthropic) -> None:
    tools: Any = [{"name": "weather", "input_schema": PARAMETERS}]
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        asked: Any = {"model": MODEL, "messages": CHAT[1:], "max_tokens": 100, "tools": tools, "tool_choice": choice}
        whole = await claude.messages.create(**asked)
        async with claude.messages.stream(**asked) as stream:
            streamed = await stream.get_final_message()
        for answer in (whole, streamed):
            (block,) = answer.content
            assert block.type == "tool_use"
            assert (block.name, block.input) == ("weather", {"city": "warm"})
            assert answer.stop_reason == "tool_use"


def test_the_synchronous_anthropic_client() -> None:
    async def run() -> None:
        async with engine() as fake:
            await asyncio.to_thread(ask, fake.url)

    def ask(url: str) -> None:
        with anthropic.Anthropic(base_url=url, api_key="any") as client:
            raw = client.messages.with_raw_response.create(model=MODEL, messages=CHAT[1:], max_tokens=3)
            assert raw.parse().stop_reason == "max_tokens"
            with client.messages.stream(model=MODEL, messages=CHAT[1:], max_tokens=3) as stream:
                assert len(list(stream.text_stream)) == 3

    asyncio.run(run())


# -- the rest of the openai client's surface


async def test_embeddings_and_models(client: openai.AsyncOpenAI) -> None:
    embedded = await client.embeddings.create(model=MODEL, input=["a", "b"], encoding_format="float")
    assert [len(one.embedding) for one in embedded.data] == [8, 8]
    assert [model.id async for model in client.models.list()] == [MODEL]


async def test_errors_have_the_clients_types(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="`nobody` does not exist"):
        await client.chat.completions.create(model="nobody", messages=CHAT)
    with pytest.raises(openai.BadRequestError, match="cannot be greater than max_model_len=32768"):
        await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=10**6)
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        await client.chat.completions.create(model=MODEL, messages=CHAT, max_tokens=32768)
    image: Any = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/none.png"}}]
    with pytest.raises(openai.BadRequestError, match="multimodal"):
        await client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": image}])
