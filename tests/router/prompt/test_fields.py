"""Parts of a body that are read later."""

from __future__ import annotations

import pytest
from msgspec import UNSET, Raw

from router.errors import BadRequest
from router.prompt.fields import (
    LARGEST,
    FieldReader,
    given,
    objective_ms,
    require,
    starts,
    text_of,
    value,
    whole,
)
from router.prompt.openai import ChatFields


def test_given_and_starts() -> None:
    assert not given(UNSET)
    assert not given(Raw(b"null"))
    assert given(Raw(b'"null"'))
    assert given(Raw(b"7"))
    assert starts(Raw(b"[1]"), b'"[')
    assert not starts(Raw(b"{}"), b'"[')
    assert not starts(UNSET, b'"[')


def test_values_are_those_of_the_engines_parser() -> None:
    big = 123456789012345678901234567890
    assert value(Raw(b"[%d, 1.0, 1e400]" % big), "x") == [big, 1.0, float("inf")]
    assert value(UNSET, "x") is None
    with pytest.raises(BadRequest) as refusal:
        value(Raw(b"[" * 100_000), "x")
    assert refusal.value.param == "x"


def test_require() -> None:
    require(Raw(b"[]"), "x", b"[", "an array")
    for part in (UNSET, Raw(b"null"), Raw(b"{}")):
        with pytest.raises(BadRequest):
            require(part, "x", b"[", "an array")


def test_text_of() -> None:
    assert [text_of(field) for field in ("a", "", 7, None)] == ["a", None, None, None]


def test_whole() -> None:
    assert [whole(field) for field in (0, -7, LARGEST - 1)] == [0, -7, LARGEST - 1]
    assert [whole(field) for field in (True, 1.0, "1", None, UNSET, LARGEST, -LARGEST)] == [None] * 7


def test_objectives_are_positive_milliseconds_or_none() -> None:
    assert [objective_ms(header) for header in ("500", " 12.3456789 ", "1e3")] == [500.0, 12.346, 1000.0]
    for header in (None, "", "soon", "0", "-5", "nan", "inf", "1e400", "0.0001", "500ms", "5,5"):
        assert objective_ms(header) is None


@pytest.mark.parametrize("name", ["priority", "max_tokens", "kv_transfer_params", "tools"])
def test_a_forbidden_field_is_noticed_whether_it_is_read_or_not(name: str) -> None:
    reader = FieldReader(ChatFields, [name])
    assert not reader.forbidden(reader.read(b'{"model":"m","messages":[]}'))
    assert reader.forbidden(reader.read(b'{"model":"m","messages":[],"%s":null}' % name.encode()))


def test_where_a_read_field_cannot_be_watched_every_body_may_have_it() -> None:
    reader = FieldReader(ChatFields, ["user", "priority"])
    assert reader.forbidden(reader.read(b'{"model":"m","messages":[]}'))
