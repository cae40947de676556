"""Parts of a body that are read later."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given as given_
from hypothesis import strategies as st
from msgspec import UNSET, Raw
from pydantic import BaseModel, ValidationError

from router.errors import BadRequest
from router.prompt.api.field_reader import FieldReader
from router.prompt.api.field_values import (
    LARGEST,
    SHORT_BYTES,
    is_present,
    objective_ms,
    require,
    short_value,
    starts_with,
    text_of,
    value,
    whole_number,
)
from router.prompt.api.openai import ChatFields
from tests.suites.properties import examples


class Written(str):
    """A number as it is written."""


class Pairs(list[Any]):
    """A JSON object in which keys may come twice."""


NUMBERS = st.one_of(
    st.integers(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=True),
    st.from_regex(r"-?(0|[1-9][0-9]{0,25})(\.[0-9]{1,25})?([eE][+-]?[0-9]{1,3})?", fullmatch=True).map(Written),
)
STRINGS = st.text() | st.text(st.characters(categories=["Cs", "Cc", "Lu"]))
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | STRINGS,
    lambda inner: st.lists(inner) | st.lists(st.tuples(STRINGS, inner)).map(Pairs),
    max_leaves=20,
)


def written(thing: Any, ascii_: bool) -> str:
    if isinstance(thing, Pairs):
        return "{" + ", ".join(f"{json.dumps(k, ensure_ascii=ascii_)}:{written(v, ascii_)}" for k, v in thing) + "}"
    if isinstance(thing, list):
        return "[" + ",\n".join(written(part, ascii_) for part in thing) + "]"
    return thing if isinstance(thing, Written) else json.dumps(thing, ensure_ascii=ascii_)


def test_given_and_starts() -> None:
    assert not is_present(UNSET)
    assert not is_present(Raw(b"null"))
    assert is_present(Raw(b'"null"'))
    assert is_present(Raw(b"7"))
    assert starts_with(Raw(b"[1]"), b'"[')
    assert not starts_with(Raw(b"{}"), b'"[')
    assert not starts_with(UNSET, b'"[')


@given_(VALUES, st.booleans())
@examples(400)
def test_whatever_is_read_is_what_python_reads(thing: Any, ascii_: bool) -> None:
    text = written(thing, ascii_)
    try:
        raw = text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair can only come escaped
        raw = written(thing, True).encode()
    assert repr(value(Raw(raw), "x")) == repr(json.loads(raw))  # in types, signs and the order of keys


def test_values_are_those_of_the_engines_parser() -> None:
    big = 123456789012345678901234567890
    assert value(Raw(b"[%d, 1.0, 1e400]" % big), "x") == [big, 1.0, float("inf")]
    assert value(UNSET, "x") is None
    with pytest.raises(BadRequest) as refusal:
        value(Raw(b"[" * 100_000), "x")
    assert refusal.value.param == "x"


def test_a_short_value_is_read_and_a_long_one_is_no_name() -> None:
    assert short_value(Raw(b'"session"')) == "session"
    assert short_value(Raw(b'{"user_id":"u"}')) == {"user_id": "u"}
    nothing = [UNSET, Raw(b"null"), Raw(b"NaN"), Raw(b'"%b"' % (b"a" * SHORT_BYTES)), Raw(b"[" * 2000)]
    assert [short_value(part) for part in nothing] == [None] * len(nothing)


def test_require() -> None:
    require(Raw(b"[]"), "x", b"[", "an array")
    for part in (UNSET, Raw(b"null"), Raw(b"{}")):
        with pytest.raises(BadRequest):
            require(part, "x", b"[", "an array")


def test_text_of() -> None:
    assert [text_of(field) for field in ("a", "", 7, None)] == ["a", None, None, None]


def test_whole() -> None:
    assert [whole_number(field) for field in (0, -7, LARGEST - 1)] == [0, -7, LARGEST - 1]
    assert [whole_number(field) for field in (True, 1.0, "1", None, UNSET, LARGEST, -LARGEST)] == [None] * 7


def test_objectives_are_positive_milliseconds_or_none() -> None:
    assert [objective_ms(header) for header in ("500", " 12.3456789 ", "1e3")] == [500.0, 12.346, 1000.0]
    for header in (None, "", "soon", "0", "-5", "nan", "inf", "1e400", "0.0001", "500ms", "5,5"):
        assert objective_ms(header) is None


@pytest.mark.parametrize("name", ["priority", "max_tokens", "kv_transfer_params", "tools"])
def test_a_forbidden_field_is_noticed_whether_it_is_read_or_not(name: str) -> None:
    reader = FieldReader(ChatFields, [name])
    assert not reader.has_forbidden(reader.read(b'{"model":"m","messages":[]}'))
    assert reader.has_forbidden(reader.read(b'{"model":"m","messages":[],"%s":null}' % name.encode()))


def test_checked_fields_are_those_that_the_body_has_and_unknown_ones_are_noticed() -> None:
    reader = FieldReader(ChatFields, ["strip"], ["echo", "n", "tools"], ["plain"])
    for body, expected in (
        (b'{"model":"m"}', {}),
        (b'{"model":"m","plain":1,"strip":2,"user":"x","echo":false}', {}),
        (b'{"n":2,"echo":true,"tools":[]}', {"n": Raw(b"2"), "echo": True, "tools": Raw(b"[]")}),
        (b'{"\\u006e":2}', {"n": Raw(b"2")}),
        (b'{"n":2,"unknown":1}', None),
    ):
        assert reader.read_checked(reader.read(body)) == expected
    assert reader.read(b'{"unknown":1,"model":"m"}').model == "m"
    with pytest.raises(BadRequest, match="`echo`"):
        reader.read(b'{"echo":"maybe"}')
    assert FieldReader(ChatFields, []).read_checked(reader.read(b"{}")) is None


TEXTS = ("yes", "OFF", "t", "7", " 7 ", "7.5", "x", "")


class Engine(BaseModel):
    """The types of these fields at an engine."""

    echo: bool = False
    truncate_prompt_tokens: int | None = None


@pytest.mark.parametrize("name", ["echo", "truncate_prompt_tokens"])
@pytest.mark.parametrize("value", ["true", "0", "1", "-0", "1.0", "2", "2.0", "1.5", "[]", *map(json.dumps, TEXTS)])
def test_flags_and_numbers_are_converted_as_pydantic_does(name: str, value: str) -> None:
    body = f'{{"{name}":{value}}}'.encode()
    try:
        expected = getattr(Engine.model_validate_json(body), name)
    except ValidationError:
        with pytest.raises(BadRequest, match=f"`{name}`"):
            FieldReader(ChatFields, []).read(body)
    else:
        assert getattr(FieldReader(ChatFields, []).read(body), name) == expected


def test_where_a_read_field_cannot_be_watched_every_body_may_have_it() -> None:
    reader = FieldReader(ChatFields, ["stream", "priority"])
    assert reader.has_forbidden(reader.read(b'{"model":"m","messages":[]}'))
