"""The one tree of exceptions."""

from __future__ import annotations

import inspect

from router import errors
from router.errors import ConfigError, RequestRefused, TooBusy, WarmrouteError
from router.telemetry.metrics.prometheus import REASONS

KINDS = [kind for kind in vars(errors).values() if inspect.isclass(kind) and issubclass(kind, WarmrouteError)]
REFUSALS = [kind for kind in KINDS if issubclass(kind, RequestRefused) and kind is not RequestRefused]


def test_the_tree_is_drawn_where_it_stands() -> None:
    drawn = errors.__doc__ or ""
    assert len(REFUSALS) == 9
    assert [kind.__name__ for kind in KINDS if f" {kind.__name__} " not in drawn.replace("\n", " ")] == []
    lines = [line.split() for line in drawn.splitlines()]
    assert {line[1]: int(line[2]) for line in lines if len(line) > 2 and line[2].isdigit()} == {
        kind.__name__: kind.status for kind in REFUSALS
    }


def test_every_refusal_is_told_apart_by_metrics_and_by_status() -> None:
    assert set(REASONS) == set(REFUSALS)
    assert len({kind.status for kind in REFUSALS}) == len(REFUSALS)


def test_a_refusal_carries_what_its_answer_says() -> None:
    refusal = TooBusy("try again", code="full", retry_after_s=2)
    assert (str(refusal), refusal.message, refusal.param, refusal.code) == ("try again", "try again", None, "full")
    assert (refusal.status, refusal.kind, refusal.retry_after_s) == (429, "rate_limit_error", 2)


def test_what_an_operator_did_wrong_is_no_refusal() -> None:
    assert issubclass(ConfigError, WarmrouteError)
    assert not issubclass(ConfigError, RequestRefused)
