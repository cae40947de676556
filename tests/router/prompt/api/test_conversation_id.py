"""The turns of a conversation: the same digests on every turn, others for another."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128

from router.errors import BadRequest
from router.prompt.api.conversation_id import (
    IDS,
    MAX_BYTES,
    MAX_MESSAGES,
    TEXT_CHARACTERS,
    read_turns,
)
from router.prompt.api.parse import ReadOptions, read_prompt

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
SKIMMING = ReadOptions(want_source=False)

Message = dict[str, Any]


def turns(path: str, **fields: Any) -> list[bytes]:
    return read_turns(read_prompt(path, None, json.dumps({"model": "m"} | fields).encode(), SKIMMING))


def name(path: str, **fields: Any) -> bytes | None:
    """Return the digest of the present turn."""
    return next(reversed(turns(path, **fields)), None)


def chat(*messages: Message) -> bytes | None:
    return name(CHAT, messages=messages)


def user(content: Any) -> Message:
    return {"role": "user", "content": content}


def text(text: str, **more: Any) -> Message:
    return {"type": "text", "text": text} | more


texts = st.text(min_size=1, max_size=30)
said = st.builds(lambda role, text: {"role": role, "content": text}, st.sampled_from(["assistant", "user"]), texts)


def answer(content: Any) -> Message:
    return {"role": "assistant", "content": content}


@given(st.lists(texts, max_size=2), texts, st.lists(said, max_size=4), texts)
def test_a_chat_that_goes_on_repeats_its_turns(system: list[str], first: str, more: list[Message], last: str) -> None:
    begin = [{"role": "system", "content": content} for content in system] + [user(first)]
    before = turns(CHAT, messages=[*begin, *more])
    assert before
    assert all(len(turn) == 16 for turn in before)
    assert turns(CHAT, messages=[*begin, *more, answer("ok"), user(last)])[:-1] == before


@given(texts, texts, texts)
def test_another_message_or_system_prompt_is_another_turn(a: str, b: str, system: str) -> None:
    one = chat({"role": "system", "content": system}, user(a))
    assert (one == chat({"role": "system", "content": system}, user(b))) == (a == b)
    assert one != chat({"role": "system", "content": system + b}, user(a))
    assert one != chat(user(a))
    assert (chat(user(a), answer(a), user("x")) == chat(user(a), answer(b), user("x"))) == (a == b)


def test_a_turn_ends_where_an_answer_follows() -> None:
    tool = {"role": "tool", "tool_call_id": "1", "content": "42"}
    chat_turns = turns(CHAT, messages=[user("a"), user("b"), answer(None), tool, tool, answer("c"), user("d")])
    assert len(chat_turns) == 3
    assert chat_turns[0] == chat(user("a"), user("b")) != chat(user("a"))
    assert turns(CHAT, messages=[user("a"), user("b"), answer("begun")]) == chat_turns[:1], "an answer to go on with"
    items = [user("a"), {"type": "reasoning", "summary": []}, {"type": "function_call", "name": "f", "arguments": ""}]
    output = {"type": "function_call_output", "call_id": "1", "output": "42"}
    called = turns(RESPONSES, input=[*items, output])
    assert [len(turns(RESPONSES, input=items)), len(called)] == [1, 2]
    assert called == turns(RESPONSES, input=[items[0], items[2], output]), "reasoning may be left out"
    assert called[1] != turns(RESPONSES, input=[*items, output | {"output": "43"}])[1]


def test_thoughts_may_be_left_out() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    messages = [user("a"), answer([thought, text("b")]), user("c")]
    assert turns(MESSAGES, messages=messages) == turns(MESSAGES, messages=[user("a"), answer("b"), user("c")])


@pytest.mark.parametrize("character", ["a", "\n", "\u00e9", "\u4e2d", "\U0001f600"])
@pytest.mark.parametrize("ascii_", [True, False])
def test_a_long_completion_is_cut_between_two_characters(character: str, ascii_: bool) -> None:
    def named(prompt: str) -> bytes | None:
        body = json.dumps({"model": "m", "prompt": prompt}, ensure_ascii=ascii_).encode()
        return next(iter(read_turns(read_prompt(COMPLETIONS, None, body, SKIMMING))), None)

    for shift in range(12):
        begin = "x" * shift + character * TEXT_CHARACTERS
        assert named(begin) == named(begin + character * 15_000) != named("y" + begin)


def test_how_much_is_read_is_bounded() -> None:
    long = "a" * (MAX_BYTES + 1)
    assert chat(user(long + "b")) == chat(user(long + "c"), user("d")) != chat(user("b" + long))
    half = "a" * (MAX_BYTES // 2)
    begun = [user(half), answer(half)]
    assert chat(*begun, user("b")) == chat(*begun, user("c"), answer("d"), user("e"))
    assert name(MESSAGES, system=long, messages=[user("x")]) != name(MESSAGES, system=long, messages=[user("y")])
    assert name(RESPONSES, input=long) == name(RESPONSES, input=long + "b")
    assert name(COMPLETIONS, prompt=[long, "x"]) is None
    assert chat(*[answer("")] * MAX_MESSAGES, user("x")) is None


def test_turns_beyond_those_that_are_read_count_as_the_last_one() -> None:
    messages = [message for i in range(MAX_MESSAGES) for message in (user(f"a{i}"), answer(f"b{i}"))]
    read = turns(CHAT, messages=messages[:MAX_MESSAGES])
    assert len(read) == MAX_MESSAGES // 2
    assert turns(CHAT, messages=messages) == read


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
    assert plain == name(MESSAGES, system=[billing, text("be brief")], messages=[user("hi"), answer("more")])
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
    ho = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "ho"}]}
    assert first is not None
    assert turns(RESPONSES, instructions="be brief", input=[item, ho, user("and?")])[0] == first
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
        return next(iter(read_turns(read_prompt(COMPLETIONS, None, body, SKIMMING))), None)

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


def test_digests_are_the_same_in_every_process() -> None:
    """They have no key: arms and sessions of a fleet of routers go by them."""
    assert chat(user("hi")) == xxh3_128(b'6:"user"4:"hi"').digest()
