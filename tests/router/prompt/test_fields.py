"""Parts of a body that are read later."""

from __future__ import annotations

import pytest
from msgspec import UNSET, Raw

from router.errors import BadRequest
from router.prompt.fields import given, require, starts, text_of, value


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
