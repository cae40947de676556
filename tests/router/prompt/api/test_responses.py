"""`/v1/responses` as vLLM 0.32 builds its chat; expectations recorded from its own functions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from router.prompt.api.openai import PromptFields
from router.prompt.api.responses import ResponsesFields, read_responses
from router.prompt.prompt import Chat, UnknownIds

USER = {"role": "user", "content": "a"}


def call(call_id: str, name: str, **extra: Any) -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", **extra}


def called(call_id: str, name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "function": {"name": name, "arguments": arguments}, "type": "function"}


def said(text: str, **extra: Any) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text}, {"type": "output_text", "text": "more"}]
    return {"type": "message", "role": "assistant", "content": content, **extra}


def read(given: Any, **fields: Any) -> PromptFields:
    body = json.dumps({"input": given, **fields}).encode()
    return read_responses(msgspec.json.decode(body, type=ResponsesFields))


@pytest.mark.parametrize(
    ("given", "chat"),
    [
        ("hi", [{"role": "user", "content": "hi"}]),
        (
            [
                USER,
                call("c1", "f"),
                call("c2", "g", namespace="ns"),
                {"type": "function_call_output", "call_id": "c1", "output": "r"},
            ],
            [
                USER,
                {"role": "assistant", "tool_calls": [called("c1", "f"), called("c2", "ns__g")]},
                {"role": "tool", "content": "r", "tool_call_id": "c1"},
            ],
        ),
        (
            [
                {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "th"}]},
                said("q"),
                said("r"),
            ],
            [{"role": "assistant", "reasoning": "th", "content": "q"}, {"role": "assistant", "content": "r"}],
        ),
        (
            [{"type": "reasoning", "summary": [{"type": "summary_text", "text": "su"}]}, call("c1", "f")],
            [{"role": "assistant", "reasoning": "su", "tool_calls": [called("c1", "f")]}],
        ),
        (
            [{"role": "assistant", "content": "x"}, call("c1", "f"), {"role": "assistant", "content": "y"}],
            [
                {"role": "assistant", "content": "x", "tool_calls": [called("c1", "f")]},
                {"role": "assistant", "content": "y"},
            ],
        ),
        (
            [
                {"type": "custom_tool_call", "call_id": "c", "name": "n", "input": "é"},
                {"type": "custom_tool_call_output", "call_id": "c", "output": "o"},
            ],
            [
                {"role": "assistant", "tool_calls": [called("c", "n", '{"input": "é"}')]},
                {"role": "tool", "content": "o", "tool_call_id": "c"},
            ],
        ),
    ],
)
def test_items_become_messages(given: Any, chat: list[Any]) -> None:
    assert read(given).remote_fields["messages"] == chat


def test_instructions_come_first_and_special_tokens_are_added() -> None:
    reading = read("hi", instructions="be")
    assert reading.remote_fields["messages"][0] == {"role": "system", "content": "be"}
    assert isinstance(reading.source, Chat)
    assert reading.source.add_special_tokens
    assert reading.source.add_generation_prompt


@pytest.mark.parametrize(
    ("last", "continued"),
    [
        (said("q", status="incomplete"), True),
        ({"role": "assistant", "content": "x", "status": "in_progress"}, True),
        (said("q", status="completed"), False),
        (said("q"), False),
        (call("c", "f", status="incomplete"), False),
    ],
)
def test_an_unfinished_message_is_continued(last: dict[str, Any], continued: bool) -> None:
    source = read([USER, last]).source
    assert isinstance(source, Chat)
    assert (source.continue_final_message, source.add_generation_prompt) == (continued, not continued)


def test_tools() -> None:
    schema = {"type": "object", "properties": {}}
    tools = [
        {"type": "function", "name": "f", "parameters": schema, "strict": True, "description": "d"},
        {"type": "web_search"},
        {"type": "custom", "name": "c", "description": "x"},
        {
            "type": "namespace",
            "name": "ns",
            "tools": [{"type": "function", "name": "g"}, {"type": "custom", "name": "h"}],
        },
    ]
    source = read("hi", tools=tools).source
    assert isinstance(source, Chat)
    assert source.tools is not None
    assert [tool["function"]["name"] for tool in source.tools] == ["f", "c", "ns__g"]
    first = {"name": "f", "description": "d", "parameters": schema, "strict": True}
    assert json.dumps(source.tools[0]) == json.dumps({"type": "function", "function": first})
    assert source.tools[1]["function"]["parameters"]["required"] == ["input"]
    only_builtin = read("hi", tools=[{"type": "web_search"}]).source
    assert isinstance(only_builtin, Chat)
    assert only_builtin.tools == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response"),
        ({"previous_input_messages": []}, "previous_response"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "content"),
        ({"input": [{"type": "reasoning", "summary": [], "encrypted_content": "x"}]}, "content"),
        ({"input": [call("c", "f") | {"name": None}]}, "content"),
        ({"tools": [7]}, "tools"),
    ],
)
def test_unknown(fields: dict[str, Any], reason: str) -> None:
    assert read(
        **({"given": "a"} | {("given" if k == "input" else k): v for k, v in fields.items()})
    ).source == UnknownIds(reason)
