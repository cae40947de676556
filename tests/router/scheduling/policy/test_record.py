"""Records as people read them."""

from __future__ import annotations

import json
from functools import reduce
from operator import add
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import schema
from router.scheduling.policy.decision import Regret, ShadowChoice
from router.scheduling.policy.policy import Policy, build_policy
from router.scheduling.policy.rationale import explain_choice
from router.scheduling.policy.record import Attempt, PrefillRecord, Record, Stages
from router.scheduling.policy.record_view import describe_record, to_plain
from scorers.contract import Picker, Scorer, Unit, View
from scorers.registry import load_registry
from tests.suites.properties import examples
from tests.suites.views import a_load, a_row, a_speed, a_view, an_overlap, views

SCORERS = {
    "scorers": [
        {"name": "queue_depth", "weight": 2},
        {"name": "kv_usage", "weight": 0.7},
        {"name": "prefix_overlap", "weight": 3},
    ]
}
DEFAULT = build_policy("default", schema.PolicyConfig.model_validate(SCORERS))
FILTERED = build_policy(
    "filtered", schema.PolicyConfig.model_validate({"filters": [{"name": "max_waiting", "waiting": 4}], **SCORERS})
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
    assert describe_record(a_record(), in_full=False) == {
        "id": "run-7", "number": 7, "at_wall_s": 1_700_000_000.0, "endpoint": "/v1/completions", "model": "m",
        "stream": True, "tokens_from": "local", "prompt_tokens_counted": 40, "client": None, "sender": None,
        "policy": None, "policy_digest": None, "arm": None, "asked_by": None, "attempts": [], "why": None,
        "admission_rule": None, "full_targets": [],
        "shadows": [], "status": None, "error": None, "ttft_ms": None, "duration_ms": None, "prompt_tokens": None,
        "cached_tokens": None, "output_tokens": None, "tool_call": None, "uncontinued": None, "session": None,
        "preloaded_tokens": None, "parent": None, "program": None, "poison": False, "done": False, "target": None,
        "prefix_end": None,
        "body_ms": None, "prepared_ms": None, "trace_id": None, "alias": None, "model_arm": None, "fallback": None,
        "revision": None, "several_answers": False,
        "stages": {
            "parse_ms": 0.25, "tokens_ms": None, "keys_ms": None, "pool_ms": None, "match_ms": None, "decide_ms": None,
            "connect_ms": None, "admission_ms": None, "wake_ms": None,
        },
    }  # fmt: skip


def test_every_attempt_with_its_candidates() -> None:
    record = a_record(VIEW, VIEW._replace(rows=VIEW.rows[1:]))
    record.attempts[0].end = "connect"
    shown = describe_record(record)
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
    kept, skipped = describe_record(a_record(VIEW, VIEW._replace(rows=VIEW.rows[1:]), policy="filtered"))["attempts"]
    assert ([row["target"] for row in kept["candidates"]], kept["skipped_filters"]) == (["a/0"], [])
    assert ([row["target"] for row in skipped["candidates"]], skipped["skipped_filters"]) == (["b/0"], ["max_waiting"])


def test_what_means_nothing_to_others_stays_here() -> None:
    """Our own clock, the unit's digest and the prompt's keys."""
    record = a_record(VIEW)
    record.unit, record.blocks = b"0123456789abcdef", (1, 2, 3)
    assert not {"arrived_s", "unit", "blocks"} & set(describe_record(record))


def test_the_policy_is_told_by_name_and_digest() -> None:
    record = a_record(VIEW)
    record.policy, record.arm = DEFAULT, "default"
    shown = describe_record(record)
    assert (shown["policy"], shown["policy_digest"], shown["arm"]) == ("default", DEFAULT.digest, "default")


def test_the_view_is_shown_without_its_rows() -> None:
    view = describe_record(a_record(VIEW))["attempts"][0]["view"]
    assert (view["prompt_tokens"], view["prefixes"]) == (40, [1, 2])
    assert set(view) == set(View._fields) - {"rows"}


def test_the_reason_stands_at_every_choice_and_the_last_one_above_all() -> None:
    record = a_record(VIEW, VIEW._replace(rows=VIEW.rows[1:]))
    record.attempts[0].prefill = PrefillRecord(DEFAULT.decide(VIEW), 0, 16, "ok", 12.5, 32)
    shown = describe_record(record)
    first, second = shown["attempts"]
    assert first["why"] == first["prefill"]["why"] == explain_choice(record.attempts[0].decision)
    assert first["why"].startswith("a/0: queue_depth costs ")
    assert shown["why"] == second["why"] == "b/0: the only candidate"


def test_who_was_left_out_is_told_as_a_number_and_in_a_sentence() -> None:
    few, all_of_them = describe_record(a_record(VIEW._replace(others=98), VIEW))["attempts"]
    assert few["view"]["others"] == 98
    assert few["left_out"].startswith("not priced: 98 of 100 candidates; ")
    assert (all_of_them["view"]["others"], all_of_them["left_out"]) == (0, None)


def test_shadows_say_what_they_would_have_done() -> None:
    record = a_record(VIEW)
    record.shadows = [ShadowChoice("lmetric", "b/0", Regret(12.5, None))]
    assert describe_record(record)["shadows"] == [
        {"policy": "lmetric", "target": "b/0", "difference": {"ttft_ms": 12.5, "overlap_tokens": None}}
    ]


def test_sets_come_sorted() -> None:
    assert describe_record(a_record(VIEW))["attempts"][0]["candidates"][0]["load"]["adapters"] == ["a", "m", "z"]
    assert to_plain((1, frozenset({3, 2}), a_speed())) == [1, [2, 3], to_plain(a_speed())]


def by_unit() -> dict[Unit, list[str]]:
    """The built-in scorers that can be added up."""
    registry = load_registry()
    units: dict[Unit, list[str]] = {}
    for name in registry.names(Scorer):
        units.setdefault(registry.find(Scorer, name).unit, []).append(name)
    return units


BY_UNIT = by_unit()


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Any scorers of one unit with any weights, in any order, and any picker."""
    unit = draw(st.sampled_from(list(BY_UNIT)))
    most = 1 if unit is Unit.RAW else len(BY_UNIT[unit])
    names = draw(st.lists(st.sampled_from(BY_UNIT[unit]), min_size=1, max_size=most, unique=True))
    weights = [draw(st.floats(0.001, 1000)) for _ in names]
    picker = draw(st.sampled_from(load_registry().names(Picker)))
    scorers = [{"name": name, "weight": weight} for name, weight in zip(names, weights, strict=True)]
    return build_policy("any", schema.PolicyConfig.model_validate({"scorers": scorers, "picker": {"name": picker}}))


@examples(150)
@given(policies(), views())
def test_the_terms_add_up_to_every_candidates_cost(policy: Policy, view: View) -> None:
    """Exactly so when added in the order in which they are told. Only plain JSON types come out, whatever the view."""
    record = a_record()
    record.attempts = [Attempt(policy.decide(view), 32, 36)]
    (attempt,) = json.loads(msgspec.json.encode(describe_record(record)))["attempts"]
    candidates = attempt["candidates"]
    assert [row["target"] for row in candidates] == [row.target for row in view.rows]
    for row in candidates:
        assert list(row["terms"]) == [scorer.name for scorer in policy.scorers]
        assert all(term["weighted"] == term["weight"] * term["cost"] for term in row["terms"].values())
        assert reduce(add, (term["weighted"] for term in row["terms"].values())) == row["cost"]
    assert row_of(attempt)["cost"] - min(row["cost"] for row in candidates) == max(0.0, -(attempt["margin"] or 0.0))


def row_of(attempt: dict[str, Any]) -> dict[str, Any]:
    """The candidate that was chosen."""
    (chosen,) = [row for row in attempt["candidates"] if row["target"] == attempt["target"]]
    return dict(chosen)


def test_a_pair_shows_both_choices_and_how_each_half_ended() -> None:
    record = a_record(VIEW)
    record.attempts[0].prefill = PrefillRecord(DEFAULT.decide(VIEW._replace(rows=VIEW.rows[1:])), 0, 16, "ok", 12.5, 32)
    (attempt,) = describe_record(record)["attempts"]
    half = attempt.pop("prefill")
    assert (attempt["target"], attempt["end"]) == ("a/0", "running")
    assert (half["target"], half["end"], half["duration_ms"], half["cached_tokens"]) == ("b/0", "ok", 12.5, 32)
    assert (half["predicted_tokens"], half["expected_tokens"]) == (0, 16)
    (candidate,) = half["candidates"]
    assert sum(term["weighted"] for term in candidate["terms"].values()) == pytest.approx(candidate["cost"])
    assert json.loads(msgspec.json.encode(half)) == half
    assert describe_record(a_record(VIEW))["attempts"][0]["prefill"] is None
