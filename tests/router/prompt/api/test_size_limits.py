"""What a body holds is counted exactly, whatever is written inside its strings, and wherever a slice ends."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from router.errors import BadRequest
from router.prompt.api import size_limits
from router.prompt.api.openai import ChatFields, CompletionFields
from router.prompt.api.responses import ResponsesFields
from router.prompt.api.size_limits import check_elements, exceeds
from tests.suites.properties import examples

TEXTS = st.text(st.sampled_from('a",:[]{}\\\n\u00e9\u4e2d\U0001f600'), max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=12,
)


def objects_in(value: Any) -> int:
    match value:
        case str():
            return 1
        case list():
            return 1 + sum(map(objects_in, value))
        case dict():
            return 1 + len(value) + sum(map(objects_in, value.values()))
    return 0


def commas_in(value: Any) -> int:
    match value:
        case list():
            return max(0, len(value) - 1) + sum(map(commas_in, value))
        case dict():
            return max(0, len(value) - 1) + sum(map(commas_in, value.values()))
    return 0


def accepted(raw: bytes, *, has_ids: bool = False) -> bool:
    try:
        check_elements(raw, has_ids=has_ids)
    except BadRequest:
        return False
    return True


@given(VALUES, st.booleans(), st.integers(1, 9))
@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_strings_arrays_and_objects_are_counted_to_the_last_one(
    monkeypatch: pytest.MonkeyPatch, value: Any, ascii_: bool, slice_bytes: int
) -> None:
    raw = json.dumps(value, ensure_ascii=ascii_).encode()
    monkeypatch.setattr(size_limits, "SLICE_BYTES", slice_bytes)
    monkeypatch.setattr(size_limits, "MAX_SMALL", 1000)
    most = max(objects_in(value), commas_in(value))
    monkeypatch.setattr(size_limits, "MAX_OBJECTS", most)
    assert accepted(raw)
    if most:
        monkeypatch.setattr(size_limits, "MAX_OBJECTS", most - 1)
        assert not accepted(raw)


def test_numbers_may_be_many_only_where_they_are_token_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "MAX_OBJECTS", 10)
    monkeypatch.setattr(size_limits, "MAX_SMALL", 20)
    assert accepted(b"[" + b"7," * 20 + b"7]", has_ids=True)
    assert not accepted(b"[" + b"7," * 21 + b"7]", has_ids=True)
    assert not accepted(b"[" + b"7," * 20 + b"7]")


def test_escapes_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(size_limits, "MAX_SMALL", 20)
    assert accepted(b'"' + rb"\n" * 20 + b'"')
    assert not accepted(b'"' + rb"\n" * 21 + b'"')


def fields(kind: type[msgspec.Struct], **members: Any) -> msgspec.Struct:
    return msgspec.json.decode(json.dumps({"model": "m", **members}).encode(), type=kind)


@pytest.mark.parametrize("text", ["a", "\n", '"', "\u00e9", "\u0434", "\u4e2d", "\U0001f600", "\x00"])
def test_text_that_may_fit_is_never_called_too_long(text: str) -> None:
    """However it is escaped."""
    text *= 3000
    limit = len(text.encode()) + 100
    assert not exceeds(fields(CompletionFields, prompt=text), limit)
    assert not exceeds(fields(ChatFields, messages=[{"role": "user", "content": text}]), limit)


def test_text_beyond_the_limit_is_found_wherever_it_is() -> None:
    text, limit = "word " * 1000, 5000
    assert exceeds(fields(CompletionFields, prompt=text), limit)
    assert exceeds(fields(ChatFields, messages=[{"role": "user", "content": text}]), limit)
    assert exceeds(fields(ChatFields, messages=[], tools=[{"function": {"name": "f", "description": text}}]), limit)
    assert exceeds(fields(ResponsesFields, input="x", instructions=text), limit)


def test_media_are_no_text() -> None:
    data = "A" * 10_000
    image = {"type": "image", "source": {"data": data}}
    parts = [
        {"type": "text", "text": "see"},
        {"type": "image_url", "image_url": {"url": data}},
        {"type": "input_audio", "input_audio": {"data": data}},
        {"type": "tool_result", "content": [image, image]},
    ]
    chat = fields(ChatFields, messages=[{"role": "user", "content": parts}])
    assert not exceeds(chat, 1000)
    beside = [*parts, {"type": "text", "text": "w" * 2000}]
    assert exceeds(fields(ChatFields, messages=[{"role": "user", "content": beside}]), 1000)


def test_what_only_looks_like_media_is_text() -> None:
    """Too deep in it, or of a type that is none: such a body is at worst routed by load."""
    data = {"type": "image", "data": "A" * 10_000}
    for content in ([{"type": 7, "content": "A" * 10_000}], [{"content": [{"content": [{"content": [data]}]}]}]):
        assert exceeds(fields(ChatFields, messages=[{"role": "user", "content": content}]), 1000)
