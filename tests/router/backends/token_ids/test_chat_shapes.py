"""Which chats are of one kind: those that take the same way through a template."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from router.backends.token_ids.passthrough import Shape, shape_of
from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.prompt import Chat

USER = {"role": "user", "content": "How is the weather?"}
CALL = {"id": "c", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "fine"}
TOOL = {"type": "function", "function": {"name": "weather"}}


def kind(*messages: Any, adapter: str | None = None, **fields: Any) -> Shape:
    body = json.dumps({"model": "m", "messages": messages or [USER], **fields}).encode()
    source = read_prompt("/v1/chat/completions", None, body, ReadOptions()).source
    assert isinstance(source, Chat)
    shape, outline = shape_of(source, adapter), source.outline()
    assert outline is not None
    assert shape_of(outline, adapter) == shape, "what is kept of a long chat tells the same"
    return shape


def test_length_and_words_make_no_difference() -> None:
    longer = [USER, {"role": "assistant", "content": "Fine."}] * 3 + [USER]
    assert kind(*longer) == kind(USER, {"role": "assistant", "content": "Bad. " * 100}, USER)
    assert kind(tools=[TOOL]) == kind(tools=[TOOL, TOOL])


@pytest.mark.parametrize(
    "other",
    [
        kind({"role": "system", "content": "x"}, USER),
        kind(USER, {"role": "assistant", "content": "x"}, USER),
        kind(USER, CALLING, RESULT),
        kind(tools=[TOOL]),
        kind(chat_template_kwargs={"enable_thinking": False}),
        kind(chat_template_kwargs={"enable_thinking": True}),
        kind(reasoning_effort="low"),
        kind(documents=[{"text": "x"}]),
        kind(add_generation_prompt=False),
        kind(add_special_tokens=True),
        kind(USER, {"role": "assistant", "content": "x"}, add_generation_prompt=False, continue_final_message=True),
        kind(adapter="lora"),
    ],
    ids=itertools.count(),  # the shapes themselves differ from process to process
)
def test_what_a_template_looks_at_does(other: Shape) -> None:
    assert other != kind()
    assert hash(other) == hash(other)


def test_tool_calls_make_a_kind_of_their_own() -> None:
    said = {"role": "assistant", "content": "x"}
    assert kind(USER, CALLING, RESULT, USER) != kind(USER, said, RESULT, USER)


@pytest.mark.parametrize(
    "odd",
    [
        {"messages": [{"role": f"r{i}", "content": "x"} for i in range(65)]},
        {"messages": [{"role": "r" * 65, "content": "x"}]},
        {"messages": [USER], "chat_template_kwargs": {f"v{i}": i for i in range(64)}, "reasoning_effort": "low"},
    ],
)
def test_a_chat_that_no_client_sends_has_no_outline(odd: dict[str, Any]) -> None:
    """So it is never passed with token ids, and the kinds that are remembered stay few and small."""
    body = json.dumps({"model": "m", **odd}).encode()
    source = read_prompt("/v1/chat/completions", None, body, ReadOptions()).source
    assert isinstance(source, Chat)
    assert source.outline() is None


def test_large_values_of_variables_count_as_one() -> None:
    """Clients choose them: a kind stays small, and their number too."""
    assert kind(documents=[{"text": "x"}]) == kind(documents=[{"text": "y" * 10_000}])
    assert kind(chat_template_kwargs={"x": "a" * 65}) == kind(chat_template_kwargs={"x": "b" * 10_000})
    assert kind(chat_template_kwargs={"x": "a" * 64}) != kind(chat_template_kwargs={"x": "b" * 64})
