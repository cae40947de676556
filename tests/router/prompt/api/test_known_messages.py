"""Messages of which the beginning was read before are those that reading them all gives, or are left to that way."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from router.prompt.api import known_messages
from router.prompt.api.field_values import value
from router.prompt.api.known_messages import LEAST_BYTES, read_messages
from router.prompt.api.messages import has_media, normalise
from router.prompt.known_prompt import KnownPrompt, NamedText, ReadMessages
from tests.suites.properties import examples

UNUSUAL = (
    '{"role": "user", "content": "one", "content": "two"}',  # the last one counts
    '{"content":"x","role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{\\"a\\": [1]}"}}]}',
    '{"role":"assistant","content":null,"reasoning_content":"so"}',
    '{"role":"user","content":"\\u0061\\ud83d\\ude00\\n\\"\\\\"}',
    '{"role":"user","content":"\\ud83d"}',  # half of a pair
    '{"role":"user","content":[{"type":"text","text":"[{}],"},{"type":"text","text":"b"}]}',
    '{"role":"system","content":"x-anthropic-billing-header: 1\\nrest"}',
    '{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}',
    '{"role":"user","content":1e999,"name":NaN}',
    '{"role":"user","content":"' + "🎉é" * 3 + '"}',
    '{"role":5}',
    '"text"',
    "[]",
)
written = st.builds(
    lambda role, text, ascii_only, indent, back: json.dumps(
        dict(sorted({"role": role, "content": text}.items(), reverse=back)), ensure_ascii=ascii_only, indent=indent
    ),
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.booleans(),
    st.sampled_from([None, None, 1]),
    st.booleans(),
)
messages = written | st.sampled_from(UNUSUAL)
commas = st.sampled_from([",", ", ", " ,\n", "\t,\r\n "])


@st.composite
def arrays(draw: st.DrawFn) -> list[str]:
    """Arrays of which each is an earlier one with messages added, changed, moved or removed, or spaced otherwise."""
    made: list[tuple[list[str], str, str]] = [(draw(st.lists(messages, max_size=5)), draw(commas), "")]
    for _ in range(draw(st.integers(1, 5))):
        chat, comma, end = draw(st.sampled_from(made))
        at = draw(st.integers(0, len(chat)))
        kind = draw(st.sampled_from(["add", "add", "change", "remove", "insert", "respace", "end", "again"]))
        if kind == "add":
            chat = [*chat, *draw(st.lists(messages, max_size=3))]
        elif kind == "change":
            chat = [*chat[:at], draw(messages), *chat[at + 1 :]]
        elif kind == "remove":
            chat = [*chat[:at], *chat[at + 1 :]]
        elif kind == "insert":
            chat = [*chat[:at], draw(messages), *chat[at:]]
        elif kind == "respace":
            comma = draw(commas)
        elif kind == "end":
            end = draw(st.sampled_from(["", " ", "\n"]))
        made.append((chat, comma, end))
    return [f"[{end}{comma.join(chat)}{end}]" for chat, comma, end in made]


@pytest.fixture(autouse=True, scope="module")
def short_arrays() -> Iterator[None]:
    """Remember arrays of any length."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(known_messages, "LEAST_BYTES", 0)
        yield


def remember(read: ReadMessages) -> KnownPrompt:
    return KnownPrompt(b"", read, NamedText(b""), 0)


def find(known: KnownPrompt | None) -> Any:
    return lambda raw: ReadMessages(raw, [], known)


@given(arrays=arrays(), data=st.data())
@examples(300)
def test_they_are_those_of_the_plain_way(arrays: list[str], data: st.DataObject) -> None:
    remembered: list[KnownPrompt | None] = [None]
    for array in arrays:
        raw = Raw(array.encode())
        read = read_messages(raw, find(data.draw(st.sampled_from(remembered))))
        try:
            plain = normalise(json.loads(array))
        except ValueError:
            plain = None
        if plain is None or has_media(plain) or not plain:
            assert read is None
            continue
        if read is None:  # Python's json reads more than msgspec
            assert '\\ud83d"' in array
            continue
        assert repr(read.messages) == repr(plain)
        assert repr(normalise(value(raw, "messages"))) == repr(plain)
        begins = [1, *read.ends[:-1]]
        parts = [array.encode()[begin:end].lstrip(b", \t\r\n") for begin, end in zip(begins, read.ends, strict=True)]
        assert repr([json.loads(part) for part in parts]) == repr(json.loads(array))
        assert len(read.sizes) == len(plain)
        assert sorted(read.sizes) == read.sizes
        remembered.append(remember(read))


def test_only_what_is_new_is_read() -> None:
    turns = [{"role": "user", "content": f"say {number}"} for number in range(9)]
    first = read_messages(Raw(json.dumps(turns[:6]).encode()), find(None))
    assert first is not None
    second = read_messages(Raw(json.dumps(turns).encode()), find(remember(first)))
    assert second is not None
    assert (second.known_messages, len(second.messages)) == (6, 9)
    assert all(one is two for one, two in zip(first.messages, second.messages, strict=False)), "nothing is read again"
    assert len(first.messages) == 6, "what is remembered stays as it is"
    edited = [*turns[:3], {"role": "user", "content": "said otherwise"}, *turns[4:]]
    third = read_messages(Raw(json.dumps(edited).encode()), find(remember(second)))
    assert third is not None
    assert (third.known_messages, len(third.messages), third.sizes[2]) == (3, 9, second.sizes[2])


def test_short_arrays_and_missing_ones_are_left_to_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_messages, "LEAST_BYTES", LEAST_BYTES)
    assert LEAST_BYTES > 1000
    assert read_messages(Raw(b'[{"role":"user","content":"x"}]'), find(None)) is None
