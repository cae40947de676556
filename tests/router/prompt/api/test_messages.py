"""Messages as vLLM 0.32 normalises them; expectations recorded from its own chat parser (parts kept as a list)."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.prompt.api.messages import has_media, normalise, parse_arguments

HI = [{"type": "text", "text": "hi"}]


def call(arguments: Any, **extra: Any) -> dict[str, Any]:
    return {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments, **extra}}


@pytest.mark.parametrize(
    ("message", "normal"),
    [
        (
            {"role": "user", "content": "hi", "name": "bob", "foo": 1},
            {"role": "user", "content": HI, "name": "bob"},
        ),
        ({"role": "user"}, {"role": "user", "content": []}),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"x": 1}, "name": "n"}, "b"]},
            {
                "role": "user",
                "content": [{"type": "text", "text": "a", "cache_control": {"x": 1}}, {"type": "text", "text": "b"}],
            },
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}, {"type": "text", "text": None}]},
            {"role": "assistant", "content": [{"type": "text", "text": "no"}]},
        ),
        (
            {"role": "assistant", "content": "hi", "reasoning_content": "r", "tool_calls": []},
            {"role": "assistant", "content": HI, "reasoning": "r", "reasoning_content": "r"},
        ),
        (
            {"role": "tool", "tool_call_id": "1", "content": "hi", "tool_calls": [call("{}")]},
            {"role": "tool", "content": HI, "tool_call_id": "1"},
        ),
        ({"role": "developer", "content": "hi"}, {"role": "developer", "content": HI, "tools": None}),
        ({"role": "odd", "content": "hi", "task": "t"}, {"role": "odd", "content": HI, "task": "t"}),
        (
            {"role": "system", "content": "x-anthropic-billing-header: 1\nhi"},
            {"role": "system", "content": HI},
        ),
        ({"role": "system", "content": "x-anthropic-billing-header: 1"}, {"role": "system", "content": []}),
    ],
)
def test_one_message(message: dict[str, Any], normal: dict[str, Any]) -> None:
    assert normalise([message]) == [normal]


def test_the_keys_of_a_tool_call_stand_in_the_engines_order() -> None:
    message = {"role": "assistant", "tool_calls": [call('{"b": 1.0, "a": 2}', zzz=1) | {"index": 0}]}
    plain = '{"name": "f", "arguments": {"b": 1.0, "a": 2}, "zzz": 1}'
    ordered = '{"arguments": {"b": 1.0, "a": 2}, "name": "f", "zzz": 1}'
    for validated, function in ((True, ordered), (False, plain)):
        normal = normalise([message], validated=validated)
        assert normal is not None
        assert json.dumps(normal[0]["tool_calls"][0]["function"]) == function
    assert list((normalise([message]) or [])[0]["tool_calls"][0]) == ["id", "function", "type", "index"]


@pytest.mark.parametrize(
    ("written", "read"),
    [('{"a": 1}', {"a": 1}), ({"a": 1}, {"a": 1}), ("", {}), (None, {}), ("{bad", {}), ("[1]", {}), ("7", {}), (7, {})],
)
def test_arguments_are_always_an_object(written: Any, read: dict[str, Any]) -> None:
    assert parse_arguments(written) == read


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "x"}},
        {"type": "input_audio", "input_audio": {}},
        {"image_url": "x"},
        {"type": "video_url", "video_url": {"url": "x"}, "uuid": "1"},
    ],
)
def test_media(part: dict[str, Any]) -> None:
    normal = normalise([{"role": "user", "content": ["a", part]}])
    assert normal is not None
    assert has_media(normal)


@pytest.mark.parametrize(
    "message",
    [
        "text",
        {"content": "no role"},
        {"role": "user", "content": 7},
        {"role": "user", "content": [7]},
        {"role": "user", "content": [{"type": "prompt_embeds", "data": "b64"}]},
        {"role": "user", "content": [{"type": "unheard of"}]},
        {"role": "user", "content": [{"type": "text", "text": 7}]},
        {"role": "assistant", "tool_calls": [{"id": "1", "type": "custom", "custom": {}}]},
        {"role": "assistant", "tool_calls": "f()"},
    ],
)
def test_what_the_engine_refuses(message: Any) -> None:
    assert normalise([message]) is None
