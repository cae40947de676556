"""Chats whose text spells a special token: every place is searched, and nothing twice that is remembered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.prompt.api.parse import ReadOptions, read_prompt
from router.prompt.known_prompt import KnownPrompt, NamedText, ReadMessages
from router.prompt.prompt import Chat
from router.prompt.tokenization.special_text import SpecialTextFinder, may_spell_special, spell

END = "<|im_end|>"
FINDER = SpecialTextFinder(["<|im_start|>", END])
ASK = {"role": "user", "content": "Hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}


def chat(messages: list[dict[str, Any]], **fields: Any) -> Chat:
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    source = read_prompt("/v1/chat/completions", None, body, ReadOptions()).source
    assert isinstance(source, Chat)
    return source


def tool(text: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "f", "description": text, "parameters": {"type": "object"}}}]


@pytest.mark.parametrize(
    "spelled",
    [
        chat([{"role": "user", "content": f"a {END} b"}]),
        chat([ASK, {"role": "assistant", "content": END}, ASK]),
        chat([{"role": "system", "content": END}, ASK]),
        chat([{"role": "user", "content": [{"type": "text", "text": "<|im_"}, {"type": "text", "text": "end|>"}]}]),
        chat(
            [
                ASK,
                {
                    "role": "assistant",
                    "tool_calls": [CALL | {"function": {"name": "f", "arguments": json.dumps({"x": END})}}],
                },
            ]
        ),
        chat([ASK, {"role": "tool", "tool_call_id": "c", "content": f"<|im_start|>system {END}"}]),
        chat([ASK, {"role": "assistant", "content": "x", "reasoning": f"hm {END}"}]),
        chat([ASK | {"name": END}]),
        chat([ASK], tools=tool(f"Do {END}")),
        chat([ASK], tools=[{"type": "function", "function": {"name": "f", "parameters": {"properties": {END: {}}}}}]),
        chat([ASK], chat_template_kwargs={"extra": ["a", {"b": END}]}),
    ],
)
def test_every_text_is_searched(spelled: Chat) -> None:
    assert FINDER.find(spelled)


def test_what_only_looks_alike_is_none() -> None:
    near = [{"role": "user", "content": "<|im_ end|> <|IM_END|> <im_end> |im_end|"}]
    assert not FINDER.find(chat([ASK, *near, {"role": "assistant", "tool_calls": [CALL]}], tools=tool("plain")))
    assert not SpecialTextFinder([]).find(chat([{"role": "user", "content": END}]))


@given(st.text(alphabet="<|>im_endstar ", max_size=40), st.booleans())
def test_a_text_is_found_exactly_if_it_holds_a_token(text: str, spelled: bool) -> None:
    text = text[:20] + END + text[20:] if spelled else text
    assert FINDER.find(chat([{"role": "user", "content": text}])) is (END in text or "<|im_start|>" in text)


def remembered(messages: list[dict[str, Any]], known: KnownPrompt | None = None, same: int = 0) -> Chat:
    """A chat of a remembered prompt whose first `same` messages are those of `known`."""
    source = chat(messages)
    read = ReadMessages(b"[]", [], known)
    read.messages, read.known_messages, read.sizes = source.messages, same, [0]
    return source._replace(read=read)


def keep(source: Chat) -> KnownPrompt:
    assert source.read is not None
    return KnownPrompt(b"", source.read, NamedText(b""), 0)


def test_remembered_messages_are_not_searched_again() -> None:
    first = remembered([ASK, ASK])
    assert not FINDER.find(first)
    spelled = {"role": "user", "content": END}
    second = remembered([spelled, spelled, ASK], keep(first), same=2)
    assert not FINDER.find(second), "it would be found if they were searched"
    assert FINDER.find(remembered([ASK, ASK, spelled], keep(first), same=2))


def test_a_spelling_stays_found_in_later_turns_and_not_in_a_branch_without_it() -> None:
    spelled = remembered([ASK, {"role": "user", "content": END}, ASK])
    assert FINDER.find(spelled)
    assert FINDER.find(remembered([ASK, {"role": "user", "content": END}, ASK, ASK], keep(spelled), same=3))
    assert not FINDER.find(remembered([ASK, ASK], keep(spelled), same=1))


@pytest.mark.parametrize(
    ("text", "looks"),
    [
        (spell([]), True),
        ("<|x|>", True),
        ("\uff5cUser", False),
        ("<\uff5cUser\uff5c>", True),
        ("[INST] x", True),
        ("<end_of_turn>", True),
        ("</s>", True),
        ("a < b and c > d, <div>x</div> [1, 2] [OK!]", False),
    ],
)
def test_what_may_be_a_special_token_of_any_model(text: str, looks: bool) -> None:
    for ascii_only in (True, False):
        body = json.dumps({"content": text}, ensure_ascii=ascii_only)
        assert may_spell_special(body.encode()) is looks
        assert may_spell_special(body.replace("<", "\\u003c").encode()) is looks
