"""The name of a conversation: the same on every turn, another for another."""

from __future__ import annotations

import json
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.prompt.api.conversation_id import (
    IDS,
    MAX_ITEM_BYTES,
    MAX_MESSAGES,
    TEXT_CHARACTERS,
    conversation_digest,
)
from router.prompt.api.parse import ReadOptions, read_prompt

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SKIMMING = ReadOptions(want_source=False)

Message = dict[str, Any]


def name(path: str, **fields: Any) -> bytes | None:
    return conversation_digest(read_prompt(path, None, json.dumps({"model": "m"} | fields).encode(), SKIMMING))


def chat(*messages: Message) -> bytes | None:
    return name(CHAT, messages=messages)


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def text(text: str, **more: Any) -> Message:
    return {"type": "text", "text": text} | more


texts = st.text(min_size=1, max_size=30)
turns = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, st.sampled_from(["assistant", "user"]), texts),
    max_size=4,
)


@given(st.lists(texts, max_size=2), texts, turns)
def test_a_chat_that_goes_on_keeps_its_name(system: list[str], first: str, more: list[Message]) -> None:
    begin = [{"role": "system", "content": content} for content in system] + [user(first)]
    begun = chat(*begin)
    assert begun is not None
    assert len(begun) == 16
    assert chat(*begin, *more) == begun


@given(texts, texts, texts, turns)
def test_another_first_message_or_system_prompt_is_another_chat(
    a: str, b: str, system: str, more: list[Message]
) -> None:
    one = chat({"role": "system", "content": system}, user(a), *more)
    assert (one == chat({"role": "system", "content": system}, user(b), *more)) == (a == b)
    assert (one == chat({"role": "system", "content": system + b}, user(a), *more)) == (b == "")
    assert one != chat(user(a), *more)


@pytest.mark.parametrize("character", ["a", "\n", "\u00e9", "\u4e2d", "\U0001f600"])
@pytest.mark.parametrize("ascii_", [True, False])
def test_a_long_completion_is_cut_between_two_characters(character: str, ascii_: bool) -> None:
    def named(prompt: str) -> bytes | None:
        body = json.dumps({"model": "m", "prompt": prompt}, ensure_ascii=ascii_).encode()
        return conversation_digest(read_prompt(COMPLETIONS, None, body, SKIMMING))

    for shift in range(12):
        begin = "x" * shift + character * TEXT_CHARACTERS
        assert named(begin) == named(begin + character * 15_000) != named("y" + begin)


def test_how_much_is_read_is_bounded() -> None:
    long = "a" * (MAX_ITEM_BYTES + 1)
    assert chat(user(long + "b")) == chat(user(long + "c"), user("d")) != chat(user("b" + long))
    assert name(MESSAGES, system=long, messages=[user("x")]) is not None
    assert name(RESPONSES, input=long) == name(RESPONSES, input=long + "b")
    assert name(COMPLETIONS, prompt=[long, "x"]) is None
    assert chat(*[{"role": "assistant", "content": ""}] * MAX_MESSAGES, user("x")) is None


def test_where_one_text_ends_and_the_next_begins_counts() -> None:
    names = {
        chat({"role": "system", "content": "ab"}, user("c")),
        chat({"role": "system", "content": "a"}, user("bc")),
        chat(user([text("ab"), text("c")])),
        chat(user([text("a"), text("bc")])),
        chat(user("abc")),
    }
    assert len(names) == 5


def test_what_clients_change_between_turns_does_not_count() -> None:
    plain = name(MESSAGES, system="be brief", messages=[user("hi")])
    marked = {"cache_control": {"type": "ephemeral"}}
    billing = text("x-anthropic-billing-header: cch=1a2b3")
    assert plain is not None
    assert plain == name(MESSAGES, system=[text("be brief", **marked)], messages=[user([text("hi", **marked)])])
    assert plain == name(MESSAGES, system=[billing, text("be brief")], messages=[user("hi"), user("more")])
    assert plain == name(MESSAGES, system="x-anthropic-billing-header: 7\nbe brief", messages=[user("hi")])
    assert plain == name(MESSAGES, system="be brief", messages=[user("hi")], max_tokens=9, tools=[])


def test_pictures_count_and_their_breakpoints_do_not() -> None:
    def shown(url: str, **more: Any) -> bytes | None:
        return chat(user([text("what is it?"), {"type": "image_url", "image_url": {"url": url}} | more]))

    assert shown("a") != shown("b")
    assert shown("a") == shown("a", cache_control={})
    assert chat(user([{"n": 2**70}])) is not None, "whatever the engine will say of it"


def test_responses_begin_with_a_text_or_a_list() -> None:
    first = name(RESPONSES, instructions="be brief", input="hi")
    item = {"role": "user", "content": [{"type": "input_text", "text": "hi"}]}
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho"}]}
    assert first is not None
    assert name(RESPONSES, instructions="be brief", input=[item, answer, user("and?")]) == first
    assert name(RESPONSES, instructions="be brief", input="ho") != first
    assert name(RESPONSES, input="hi") == name(RESPONSES, instructions=None, input="hi") != first
    assert name(RESPONSES, input="hi", previous_response_id="resp_1") is None


def test_completions_begin_with_2048_characters() -> None:
    begin = "é" * TEXT_CHARACTERS
    assert name(COMPLETIONS, prompt=begin) == name(COMPLETIONS, prompt=begin + "more") is not None
    assert name(COMPLETIONS, prompt=begin) != name(COMPLETIONS, prompt=begin[:-1] + "e")
    assert name(COMPLETIONS, prompt=begin[:-1]) != name(COMPLETIONS, prompt=begin)
    assert name(COMPLETIONS, prompt=["a", "b"]) == name(COMPLETIONS, prompt="a")


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,\n            ", ": ")])
def test_completions_of_ids_begin_with_512_of_them(separators: tuple[str, str]) -> None:
    def of(prompt: Any) -> bytes | None:
        body = json.dumps({"model": "m", "prompt": prompt}, separators=separators).encode()
        return conversation_digest(read_prompt(COMPLETIONS, None, body, SKIMMING))

    ids = [2**32 - 1 - i for i in range(IDS)]
    begun = name(COMPLETIONS, prompt=ids)
    assert begun is not None
    assert of(ids) == of([*ids, 1]) == of([ids, [5]]) == of(ids * 20) == begun, "however it is spaced"
    assert of([*ids[:-1], 1]) != begun
    assert of(ids[:-1]) != begun
    assert of([12, 3]) not in (of([1, 23]), of([123]), None)
    assert name(COMPLETIONS, prompt="1,2") != name(COMPLETIONS, prompt=[1, 2])


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT, {"messages": []}),
        (CHAT, {"messages": [{"role": "system", "content": "be brief"}]}),
        (CHAT, {"messages": [7]}),
        (MESSAGES, {"messages": [{"role": "assistant", "content": "hi"}]}),
        (RESPONSES, {"input": []}),
        (COMPLETIONS, {"prompt": ""}),
        (COMPLETIONS, {"prompt": []}),
        (COMPLETIONS, {"prompt": [[]]}),
        (COMPLETIONS, {"prompt": [None]}),
        (COMPLETIONS, {"prompt": None, "prompt_embeds": "b64"}),
        ("/v1/embeddings", {"input": "hi"}),
    ],
)
def test_where_nothing_was_said_there_is_no_name(path: str, fields: dict[str, Any]) -> None:
    assert name(path, **fields) is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
message = st.fixed_dictionaries({"role": st.just("user") | json_values}, optional={"content": json_values})


@given(
    st.sampled_from([CHAT, COMPLETIONS, RESPONSES, MESSAGES]),
    st.dictionaries(
        st.sampled_from(["messages", "prompt", "input", "system", "instructions"]),
        json_values | st.lists(message, max_size=3),
        max_size=4,
    ),
)
def test_whatever_is_asked_there_is_a_name_or_none(path: str, fields: dict[str, Any]) -> None:
    try:
        found = name(path, **fields)
    except BadRequest:
        return
    assert found is None or len(found) == 16


def test_the_name_is_the_same_in_every_process() -> None:
    """A digest without a key: arms and sessions of a fleet of routers go by it."""
    assert chat(user("hi")) == blake2b(b"4:user2:hi", digest_size=16).digest()
