"""The one tree of exceptions."""

from __future__ import annotations

import inspect

import pytest

from router import errors
from router.errors import (
    ConfigError,
    NotFound,
    RequestRefused,
    TooBusy,
    WarmrouteError,
    list_names,
    quote_lines,
    quote_name,
)
from router.telemetry.metrics.prometheus import REASONS

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, WarmrouteError)]
REFUSALS = [kind for kind in KINDS if issubclass(kind, RequestRefused) and kind is not RequestRefused]
DIRECT = [kind for kind in REFUSALS if kind.__base__ is RequestRefused]  # the others are cases of these


def test_the_tree_is_drawn_where_it_stands() -> None:
    drawn = errors.__doc__ or ""
    assert (len(DIRECT), len(REFUSALS)) == (14, 15)
    assert [kind.__name__ for kind in KINDS if f" {kind.__name__} " not in drawn.replace("\n", " ")] == []
    lines = [line.split() for line in drawn.splitlines()]
    assert {line[1]: int(line[2]) for line in lines if len(line) > 2 and line[2].isdigit()} == {
        kind.__name__: kind.status for kind in DIRECT
    }


def test_every_refusal_is_told_apart_by_metrics_and_by_status() -> None:
    assert set(REASONS) == set(REFUSALS)
    assert len({kind.status for kind in DIRECT}) == len(DIRECT)


def test_a_refusal_carries_what_its_answer_says() -> None:
    refusal = TooBusy("try again", code="full", retry_after_s=2)
    assert (str(refusal), refusal.message, refusal.param, refusal.code) == ("try again", "try again", None, "full")
    assert (refusal.status, refusal.kind, refusal.retry_after_s) == (429, "rate_limit_error", 2)


def test_what_an_operator_did_wrong_is_no_refusal() -> None:
    assert issubclass(ConfigError, WarmrouteError)
    assert not issubclass(ConfigError, RequestRefused)


# names from outside


@pytest.mark.parametrize(
    ("name", "quoted"),
    [
        ("warm-tiny", "warm-tiny"),
        ("Grüße 中 😀", "Grüße 中 😀"),
        ("\x1b[2J\x07", "\\x1b[2J\\x07"),
        ("a\r\nb\tc\0\x7f", "a\\r\\nb\\tc\\x00\\x7f"),
        ("\x9b31m", "\\x9b31m"),  # CSI in one byte
        ("a\u202eb\u2028c", "a\\u202eb\\u2028c"),
        ("\ud800\U000e0001", "\\ud800\\U000e0001"),
        ("", ""),
    ],
)
def test_a_name_from_outside_is_printable(name: str, quoted: str) -> None:
    assert quote_name(name) == quoted
    assert quoted.isprintable()


def test_a_name_from_outside_is_cut() -> None:
    assert quote_name("x" * 256) == "x" * 256
    assert quote_name("x" * 257) == "x" * 256 + "..."
    assert len(quote_name("\0" * 30_000_000)) == 259
    assert quote_name("\0" * 100) == "\\x00" * 64 + "..."


def test_lines_from_outside_are_cut_and_counted() -> None:
    assert quote_lines("a\nb\x1b") == "a\nb\\x1b"
    assert quote_lines("a\n" * 3, lines=2) == "a\na\nand 2 more"
    assert quote_lines("x" * 9, limit=5) == "xxxxx..."
    assert len(quote_lines("x\n" * 1_000_000)) < 100


def test_names_are_listed_up_to_a_limit() -> None:
    assert list_names(["b", "a\n"]) == "a\\n, b"
    assert list_names([]) == ""
    assert list_names(f"{n:03}" for n in range(1234)).endswith("048, 049 and 1,184 more")


def test_an_answer_repeats_little_of_what_was_sent() -> None:
    refusal = NotFound("no " + "x" * 30_000_000, param="y" * 1000)
    assert len(refusal.message) == len(str(refusal)) < 1100
    assert refusal.param == "y" * 256 + "..."


def test_complaints_are_the_first_ones_and_a_count() -> None:
    few = ConfigError("a", "b\nc")
    assert (str(few), few.complaints, few.omitted) == ("a\nb\nc", ["a", "b", "c"], 0)
    many = ConfigError(*(f"line {n}" for n in range(38_000)), omitted=1_000)
    assert str(many).splitlines()[18:] == ["line 18", "line 19", "and 38,980 more"]
    assert str(ConfigError("first", many, many)).splitlines()[19:] == ["line 18", "and 77,981 more"]
    assert str(ConfigError("\x1b[31m" + "x" * 10_000)) == "\\x1b[31m" + "x" * 992 + "..."
