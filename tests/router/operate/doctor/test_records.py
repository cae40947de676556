"""What the doctor reads out of a router's last records."""

from __future__ import annotations

from typing import Any

from router.operate.doctor.hits import check_history, check_records
from router.operate.doctor.policies import check_refused, check_ties
from router.operate.doctor.subject import RouterAnswers, Subject
from router.operate.doctor.tokens import check_in_use

URL = "http://127.0.0.1:8001"


def record(predicted: int, cached: int, target: str = "a/0", **changes: Any) -> dict[str, Any]:
    attempt = {"predicted_tokens": predicted, "candidates": [{"cost": 1.0}, {"cost": 2.0}], "prefill": None}
    plain = {"done": True, "status": 200, "target": target, "model": "m", "endpoint": "/v1/chat/completions"}
    return plain | {"attempts": [attempt], "cached_tokens": cached, "tokens_from": "local"} | changes


def subject(*records: dict[str, Any], **answers: Any) -> Subject:
    return Subject(routers=[RouterAnswers(URL, records=list(records), **answers)])


def test_promises_that_are_kept_are_no_finding() -> None:
    assert list(check_records(subject(*[record(1000, 990)] * 30, *[record(0, 10)] * 5))) == []


def test_half_of_the_fleet_that_does_not_deliver_is_named_with_the_kind() -> None:
    (found,) = check_records(subject(*[record(1000, 1000)] * 30, *[record(1000, 100, "b/0")] * 30))
    assert (found.at, found.what) == (
        ("b",),
        "delivers 10 % of the hits predicted for the last 30 requests (chat completions)",
    )
    (found,) = check_records(subject(*[record(1000, 100, endpoint="/v1/messages")] * 30))
    assert found.what.endswith("(/v1/messages)")


def test_hits_that_nobody_predicted() -> None:
    (found,) = check_records(subject(*[record(0, 1000)] * 30))
    assert found.what == "delivered 30,000 cached tokens in 30 requests (chat completions), 0 predicted"


def test_few_requests_and_failed_ones_prove_nothing() -> None:
    few = [record(1000, 0)] * 10
    assert list(check_records(subject(*few, *[record(1000, 0, status=500)] * 30))) == []


def test_what_models_drop_from_earlier_turns_is_named_with_its_share() -> None:
    whole = record(1000, 1000, prompt_tokens=1000, prefix_end=None)
    cut = record(200, 200, prompt_tokens=1000, prefix_end={"tokens": 200, "of_tokens": 900, "cause": "reasoning"})
    (found,) = check_history(subject(*[whole] * 15, *[cut] * 5))
    assert (found.severity, found.what) == (
        "warning",
        "the model drops reasoning from earlier turns: 18 % of the tokens of the last 20 prompts",
    )
    assert list(check_history(subject(*[whole] * 59, cut))) == []
    assert list(check_history(subject(*[cut] * 5))) == []


def test_ties_of_all_candidates() -> None:
    tied = record(0, 0)
    tied["attempts"][0]["candidates"] = [{"cost": 3.0}, {"cost": 3.0}]
    aware = {"policies": {"needs": ["CACHE", "LOAD"], "active": "mine"}}
    (found,) = check_ties(subject(*[tied] * 60, **aware))
    assert found.what == "in 60 of the last 60 choices all candidates had the same cost"
    assert list(check_ties(subject(*[record(0, 0)] * 60, **aware))) == []
    assert list(check_ties(subject(*[tied] * 60, policies={"needs": ["LOAD"]}))) == []


def test_blind_prompts_are_named_with_their_reasons() -> None:
    blind = [record(0, 0, tokens_from="media")] * 4 + [record(0, 0, tokens_from="renderer")]
    (found,) = check_in_use(subject(*blind, *[record(0, 0)] * 55, *[record(0, 0, tokens_from="not_needed")] * 20))
    assert found.severity == "warning"
    assert found.what == "6 % of the last 80 prompts were placed without ids: media 4, renderer 1"
    assert list(check_in_use(subject(*blind[:2], *[record(0, 0)] * 58))) == []


def test_prompts_without_ids() -> None:
    (found,) = check_in_use(subject(*[record(0, 0, tokens_from="late")] * 3, *[record(0, 0)] * 57))
    assert found.what == "5 % of the last 60 prompts were placed without ids: late"
    assert list(check_in_use(subject(*[record(0, 0)] * 60))) == []


def test_a_change_that_was_refused_or_waits_for_a_restart() -> None:
    policies = {
        "errors": {"main.yaml": {"at_wall_s": 0.0, "text": "main.yaml:3: active: unknown"}},
        "needs_restart": ["listen.port"],
    }
    refused, waiting = check_refused(subject(policies=policies))
    assert refused.what == "refused a change of main.yaml: main.yaml:3: active: unknown"
    assert waiting.what == "runs with other values of listen.port than its file has"
