"""Which fields of a chat become template variables and tools, and what the engine is asked for the same prompt."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from jinja2.defaults import DEFAULT_NAMESPACE

from router.prompt.api.openai import (
    JINJA_GLOBALS,
    ChatFields,
    CompletionFields,
    PromptFields,
    read_chat,
    read_completion,
    template_kwargs,
)
from router.prompt.prompt import Chat, Ids, Text, UnknownIds

USER = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> PromptFields:
    return read_chat(msgspec.json.decode(json.dumps({"messages": USER, **fields}).encode(), type=ChatFields))


def completion(prompt: Any, **fields: Any) -> PromptFields:
    body = json.dumps({"prompt": prompt, **fields}).encode()
    return read_completion(msgspec.json.decode(body, type=CompletionFields))


@pytest.mark.parametrize(
    ("client", "effort", "documents", "variables"),
    [
        (None, None, None, {}),
        ({"a": 1, "b": None, "c": "auto"}, None, None, {"a": 1}),
        ({}, "low", None, {"reasoning_effort": "low", "enable_thinking": True}),
        ({}, "none", None, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"enable_thinking": False}, "low", None, {"reasoning_effort": "low", "enable_thinking": False}),
        (
            {"reasoning_effort": "a"},
            "b",
            [{"text": "d"}],
            {"reasoning_effort": "b", "enable_thinking": True, "documents": [{"text": "d"}]},
        ),
        ({"tokenize": True, "add_generation_prompt": False, "padding": 1}, None, None, {}),
        ({"chat_template": "x"}, None, None, UnknownIds("client_template")),
    ],
)
def test_template_variables(client: Any, effort: str | None, documents: Any, variables: Any) -> None:
    assert template_kwargs(client, effort, documents) == variables


@pytest.mark.parametrize(
    ("tool", "shown"),
    [
        (
            {"function": {"parameters": {}, "name": "f", "strict": None, "x": 1}, "y": 2},
            {"type": "function", "function": {"name": "f", "description": None, "parameters": {}}},
        ),
        (
            {"type": "function", "function": {"name": "f", "strict": True, "description": "d"}},
            {"type": "function", "function": {"name": "f", "description": "d", "parameters": None, "strict": True}},
        ),
        (
            {"defer_loading": True, "function": {"name": "f"}},
            {
                "type": "function",
                "function": {"name": "f", "description": None, "parameters": None, "defer_loading": True},
                "defer_loading": True,
            },
        ),
    ],
)
def test_tools_are_shown_as_the_engine_dumps_them(tool: dict[str, Any], shown: dict[str, Any]) -> None:
    source = chat(tools=[tool], tool_choice="none").source
    assert isinstance(source, Chat)
    assert json.dumps(source.tools) == json.dumps([shown])


def test_variables_that_shadow_globals_of_jinja_are_dropped() -> None:
    assert set(DEFAULT_NAMESPACE) == JINJA_GLOBALS
    shadowing = dict.fromkeys(JINJA_GLOBALS, 1)
    source = chat(chat_template_kwargs=shadowing | {"mood": "m", "strftime_now": 2}).source
    assert isinstance(source, Chat)
    assert source.template_kwargs == {"mood": "m", "strftime_now": 2}, "the last one is none for vLLM"


def test_no_tools_are_not_an_empty_list_of_them() -> None:
    for tools in ({}, {"tools": None}, {"tools": []}):
        source = chat(**tools).source
        assert isinstance(source, Chat)
        assert source.tools == tools.get("tools")


def test_what_the_engine_is_asked() -> None:
    reading = chat(tools=[{"function": {"name": "f"}}], add_generation_prompt=False, chat_template_kwargs={"a": 1})
    assert reading.remote_fields == {
        "messages": USER,
        "tools": [{"type": "function", "function": {"name": "f", "description": None, "parameters": None}}],
        "add_generation_prompt": False,
        "continue_final_message": False,
        "add_special_tokens": False,
        "chat_template_kwargs": {"a": 1},
    }
    assert completion("x").remote_fields == {"prompt": "x", "add_special_tokens": True}


@pytest.mark.parametrize(
    ("prompt", "source"),
    [
        ("a", Text("a", True)),
        (["a"], Text("a", True)),
        ([1, 2], Ids([1, 2])),
        ([[1, 2]], Ids([1, 2])),
        ([4294967295], Ids([4294967295])),
    ],
)
def test_prompts(prompt: Any, source: Any) -> None:
    assert completion(prompt).source == source
