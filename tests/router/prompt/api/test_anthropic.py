"""`/v1/messages` as vLLM 0.32 converts it; expectations recorded from its own conversion."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from router.prompt.api.anthropic import MessagesFields, read_messages
from router.prompt.api.openai import PromptFields
from router.prompt.prompt import Chat, UnknownIds

USER = {"role": "user", "content": "q"}
RESULT = {"type": "tool_result", "tool_use_id": "t1"}


def read(*messages: Any, **fields: Any) -> PromptFields:
    body = json.dumps({"messages": messages, **fields}).encode()
    return read_messages(msgspec.json.decode(body, type=MessagesFields))


@pytest.mark.parametrize(
    ("messages", "system", "chat"),
    [
        ([USER], "s", [{"role": "system", "content": "s"}, USER]),
        (
            [USER],
            [
                {"type": "text", "text": "a"},
                {"type": "text", "text": "x-anthropic-billing-header: 1"},
                {"type": "text", "text": "b"},
            ],
            [{"role": "system", "content": "ab"}, USER],
        ),
        (
            [
                {
                    "role": "assistant",
                    "content": [
                        {"type": "thinking", "thinking": "t", "signature": "s"},
                        {"type": "text", "text": "ok"},
                        {"type": "tool_use", "id": "t1", "name": "f", "input": {"b": 1, "a": "é"}},
                    ],
                }
            ],
            None,
            [
                {
                    "role": "assistant",
                    "reasoning": "t",
                    "tool_calls": [
                        {
                            "id": "t1",
                            "type": "function",
                            "function": {"name": "f", "arguments": '{"b": 1, "a": "\\u00e9"}'},
                        }
                    ],
                    "content": "ok",
                }
            ],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "go"},
                        RESULT | {"content": [{"type": "text", "text": "x"}, {"type": "text", "text": "y"}]},
                    ],
                }
            ],
            None,
            [{"role": "tool", "tool_call_id": "t1", "content": "x\ny"}, {"role": "user", "content": "go"}],
        ),
        (
            [{"role": "user", "content": [RESULT]}, {"role": "user", "content": []}],
            None,
            [{"role": "tool", "tool_call_id": "t1", "content": ""}],
        ),
        (
            [{"role": "user", "content": [RESULT | {"content": [{"type": "tool_reference", "tool_name": "u"}]}]}],
            None,
            [
                {"role": "tool", "tool_call_id": "t1", "content": ""},
                {"role": "tool", "tool_call_id": "t1", "content": [{"type": "tool_reference", "name": "u"}]},
            ],
        ),
        (
            [{"role": "system", "content": "x-anthropic-billing-header"}, {"role": "assistant", "content": []}],
            None,
            [{"role": "assistant"}],
        ),
    ],
)
def test_conversion(messages: list[Any], system: Any, chat: list[Any]) -> None:
    reading = read(*messages, system=system)
    assert reading.remote_fields["messages"] == chat
    assert isinstance(reading.source, Chat)
    assert reading.source.anthropic


def test_tools_get_a_type_and_keep_their_order() -> None:
    source = read(USER, tools=[{"name": "f", "input_schema": {"properties": {}}}]).source
    assert isinstance(source, Chat)
    shown = {"name": "f", "description": None, "parameters": {"properties": {}, "type": "object"}}
    assert json.dumps(source.tools) == json.dumps([{"type": "function", "function": shown}])


@pytest.mark.parametrize(
    ("fields", "variables"),
    [
        ({"thinking": {"type": "disabled"}}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"output_config": {"effort": "high"}}, {"reasoning_effort": "high", "enable_thinking": True}),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, {}),
        ({"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"x": 1}}, {"x": 1}),
    ],
)
def test_thinking(fields: dict[str, Any], variables: dict[str, Any]) -> None:
    source = read(USER, **fields).source
    assert isinstance(source, Chat)
    assert source.template_kwargs == variables


@pytest.mark.parametrize("source", [{"type": "url", "url": "u"}, {"type": "base64", "data": "x"}])
def test_images_cut(source: dict[str, str]) -> None:
    image = {"type": "image", "source": source}
    for content in ([image], [RESULT | {"content": [image]}]):
        chat = read({"role": "user", "content": content}).source
        assert isinstance(chat, Chat)
        assert chat.has_media


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        ({"role": "tool", "content": "x"}, "content"),
        ({"role": "user", "content": ["x"]}, "content"),
        ({"role": "assistant", "content": [{"type": "tool_use", "name": "f"}]}, "content"),
        ({"role": "system", "content": [{"type": "tool_addition"}]}, "tool_changes"),
    ],
)
def test_what_is_left_to_the_engine(message: Any, reason: str) -> None:
    assert read(USER, message).source == UnknownIds(reason)
