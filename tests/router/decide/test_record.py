"""Records as people read them."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given, settings

from router.config import schema
from router.decide.policy import build_policy
from router.decide.record import Attempt, Leg, Record, Stages, plain, readable
from scorers.contract import View
from tests.suites.views import a_load, a_row, a_speed, a_view, an_overlap, views

SCORERS = {
    "scorers": [
        {"name": "queue_depth", "weight": 2},
        {"name": "kv_usage", "weight": 0.7},
        {"name": "prefix_overlap", "weight": 3},
    ]
}
DEFAULT = build_policy("default", schema.Policy.model_validate(SCORERS))
FILTERED = build_policy(
    "filtered", schema.Policy.model_validate({"filters": [{"name": "max_waiting", "waiting": 4}], **SCORERS})
)


def a_record(*views_: View, policy: str = "default") -> Record:
    record = Record(
        "run-7", 7, 123.5, 1_700_000_000.0, "/v1/completions", "m", True, "local", 40, Stages(parse_ms=0.25)
    )
    chosen = {"default": DEFAULT, "filtered": FILTERED}[policy]
    record.attempts = [Attempt(chosen.decide(view), 32, 36) for view in views_]
    return record


VIEW = a_view(
    a_row("a", an_overlap(32, disk=36), a_load(requests=3, kv_usage=0.5, adapters=frozenset({"z", "a", "m"}))),
    a_row("b", None, a_load(requests=5, waiting=9)),
    session="whose-it-is",
    prompt_tokens=40,
    prefixes=(1, 2),
)


def test_a_record_without_an_attempt() -> None:
    assert readable(a_record()) == {
        "id": "run-7", "number": 7, "at_wall_s": 1_700_000_000.0, "endpoint": "/v1/completions", "model": "m",
        "stream": True, "tokens_from": "local", "prompt_tokens_counted": 40, "attempts": [], "status": None,
        "error": None, "ttft_ms": None, "duration_ms": None, "prompt_tokens": None, "cached_tokens": None,
        "output_tokens": None, "poison": False, "done": False, "target": None,
        "stages": {
            "parse_ms": 0.25, "tokens_ms": None, "keys_ms": None, "pool_ms": None, "match_ms": None, "decide_ms": None,
            "connect_ms": None,
        },
    }  # fmt: skip


def test_every_attempt_with_its_candidates() -> None:
    record = a_record(VIEW, VIEW._replace(rows=VIEW.rows[1:]))
    record.attempts[0].end = "connect"
    shown = readable(record)
    assert shown["target"] == record.target == "b/0"
    first, second = shown["attempts"]
    assert (first["policy"], first["target"], first["end"]) == ("default", "a/0", "connect")
    assert (first["predicted_tokens"], first["expected_tokens"], first["skipped_filters"]) == (32, 36, [])
    assert [row["target"] for row in first["candidates"]] == ["a/0", "b/0"]
    assert (second["target"], second["end"], len(second["candidates"])) == ("b/0", "running", 1)
    best = first["candidates"][0]
    assert best["overlap"]["disk_tokens"] == 36
    assert best["load"]["requests"] == 3
    assert best["speed"]["us_per_token"] == a_speed().us_per_token
    assert best["terms"]["prefix_overlap"] == {
        "unit": "points", "weight": 3.0, "cost": pytest.approx(0.15), "weighted": pytest.approx(0.45)
    }  # fmt: skip
    assert first["candidates"][1]["overlap"] is None


def test_filtered_rows_are_no_candidates_and_skipped_filters_are_named() -> None:
    kept, skipped = readable(a_record(VIEW, VIEW._replace(rows=VIEW.rows[1:]), policy="filtered"))["attempts"]
    assert ([row["target"] for row in kept["candidates"]], kept["skipped_filters"]) == (["a/0"], [])
    assert ([row["target"] for row in skipped["candidates"]], skipped["skipped_filters"]) == (["b/0"], ["max_waiting"])


def test_whose_session_it_was_and_our_own_clock_stay_here() -> None:
    shown = readable(a_record(VIEW))
    assert "arrived_s" not in shown
    assert "session" not in shown["attempts"][0]["view"]
    assert "whose-it-is" not in json.dumps(shown)


def test_the_view_is_shown_without_its_rows() -> None:
    view = readable(a_record(VIEW))["attempts"][0]["view"]
    assert "rows" not in view
    assert (view["prompt_tokens"], view["prefixes"]) == (40, [1, 2])
    assert set(view) == set(View._fields) - {"rows", "session"}


def test_sets_come_sorted() -> None:
    assert readable(a_record(VIEW))["attempts"][0]["candidates"][0]["load"]["adapters"] == ["a", "m", "z"]
    assert plain((1, frozenset({3, 2}), a_speed())) == [1, [2, 3], plain(a_speed())]


@settings(deadline=None, max_examples=40)
@given(views())
def test_the_terms_add_up_to_every_candidates_cost(view: View) -> None:
    """Only plain JSON types come out, whatever the view."""
    record = a_record(view)
    shown = json.loads(msgspec.json.encode(readable(record)))
    (attempt,) = shown["attempts"]
    candidates = attempt["candidates"]
    assert [row["target"] for row in candidates] == [row.target for row in view.rows]
    for row in candidates:
        assert set(row["terms"]) == {"queue_depth", "kv_usage", "prefix_overlap"}
        assert sum(term["weighted"] for term in row["terms"].values()) == pytest.approx(row["cost"])
        assert all(term["weighted"] == term["weight"] * term["cost"] for term in row["terms"].values())
    (chosen,) = [row for row in candidates if row["target"] == attempt["target"]]
    assert chosen["cost"] == min(row["cost"] for row in candidates)


def test_a_pair_shows_both_choices_and_how_each_half_ended() -> None:
    record = a_record(VIEW)
    record.attempts[0].prefill = Leg(DEFAULT.decide(VIEW._replace(rows=VIEW.rows[1:])), 0, 16, "ok", 12.5, 32)
    (attempt,) = readable(record)["attempts"]
    half = attempt.pop("prefill")
    assert (attempt["target"], attempt["end"]) == ("a/0", "running")
    assert (half["target"], half["end"], half["duration_ms"], half["cached_tokens"]) == ("b/0", "ok", 12.5, 32)
    assert (half["predicted_tokens"], half["expected_tokens"]) == (0, 16)
    (candidate,) = half["candidates"]
    assert sum(term["weighted"] for term in candidate["terms"].values()) == pytest.approx(candidate["cost"])
    assert json.loads(msgspec.json.encode(half)) == half
    assert readable(a_record(VIEW))["attempts"][0]["prefill"] is None
