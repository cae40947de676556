"""Replays of logs made by a real desk and the decision log's own lines."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.cli.replay.report import remarks
from router.config import schema
from router.features.decision_log.format import LoggedPolicy
from router.lab.replay.replay import NO_LINE, NO_SPEC, DifferentChoice, Replay, ReplayReport
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy, fallback_policy
from router.scheduling.policy.record import Attempt, PrefillRecord, Record
from router.scheduling.shortlist import SMALL
from scorers import registry
from scorers.best import Best
from scorers.contract import Scorer, View
from tests.router.lab.replay.scene import (
    SHIPPED,
    a_record,
    decided,
    desk_of,
    lines,
    named,
    of_a_large_fleet,
    read,
    shipped,
    to,
)
from tests.suites.plugins import Pupil
from tests.suites.properties import examples
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

REGISTRY = registry.load_registry()  # reads every installed package's metadata: once is enough
A, B, C = a_row("a", load=a_load(requests=1)), a_row("b"), a_row("c", load=a_load(requests=2))


def replayed(records: Iterable[Record], *contenders: Policy) -> ReplayReport:
    replay = Replay(contenders, REGISTRY)
    for entry in read(lines(records)):
        replay.add_policy(entry) if isinstance(entry, LoggedPolicy) else replay.add(entry)
    return replay.report()


LEARNING = {"jsew", "lbgr", "lmetric_guarded", "smetric", "subagent_groups"}
"""What these decide depends on what came before, which a replay does not teach them."""


@pytest.fixture(scope="module")
def all_shipped() -> list[Policy]:
    return [shipped(name) for name in SHIPPED if name not in LEARNING]


def test_the_policies_that_learn() -> None:
    views_of_one = [a_view(A, B, C)]
    learning = {
        name for name in SHIPPED for one in decided(shipped(name), views_of_one) if one.attempts[0].decision.learners
    }
    assert learning == LEARNING


@examples(100)
@given(seen=st.lists(views(), min_size=1, max_size=4))
def test_every_policy_that_does_not_learn_decides_again_as_it_did(all_shipped: list[Policy], seen: list[View]) -> None:
    seen = [view._replace(ask=view.ask._replace(priority=1)) for view in seen]  # JSON has no number of any size
    for policy in all_shipped:
        report = replayed(decided(policy, seen))
        (found,) = report.reproduced
        assert (found.policy, found.digest, found.choices) == (policy.name, policy.digest, len(seen))
        assert found.first == ()
        assert found.whole


def test_sessions_and_turns_come_from_the_view() -> None:
    seen = [a_view(A, B, C, session=f"s{number % 3}") for number in range(30)]
    for name in ("session_affinity", "round_robin", "random"):
        assert replayed(decided(named(name), seen)).same == 30


def test_each_policy_of_the_log_is_told_apart_by_name_and_digest() -> None:
    seen = [a_view(A, B, C)] * 3
    early, late = named("mine", "random"), named("mine", "least_requests")
    report = replayed([*decided(early, seen), *decided(late, seen), *decided(early, seen)])
    assert [(one.policy, one.digest, one.choices, one.same) for one in report.reproduced] == [
        ("mine", early.digest, 6, 6),
        ("mine", late.digest, 3, 3),
    ]


def test_a_planted_difference_is_found_and_named() -> None:
    policy = named("least_requests")
    records = list(decided(policy, [a_view(A, B, C)] * 20))
    for number in (4, 9):
        attempt = records[number].attempts[0]
        attempt.decision = attempt.decision._replace(chosen=2)
    report = replayed(records)
    (found,) = report.reproduced
    assert (found.choices, found.same, found.whole, found.learns) == (20, 18, False, False)
    assert found.first == (
        DifferentChoice("run-4", "whole", "c/0", "b/0"),
        DifferentChoice("run-9", "whole", "c/0", "b/0"),
    )


def test_only_the_first_differences_are_named() -> None:
    spec = schema.PolicyConfig.model_validate({"scorers": [{"name": "least_requests"}]})
    report = replayed(decided(to("c/0", name="liar", spec=spec), [a_view(A, B, C)] * 20))
    (found,) = report.reproduced
    assert (found.same, [one.record for one in found.first]) == (0, [f"run-{number}" for number in range(5)])


def test_what_the_fallback_decided_is_decided_by_the_fallback() -> None:
    report = replayed(decided(to("broken"), [a_view(A, B, C, number=number) for number in range(10)]))
    assert [(one.policy, one.choices, one.same) for one in report.reproduced] == [("fallback", 10, 10)]


def test_retries_and_prefill_halves_are_choices_too() -> None:
    spec = {
        "scorers": [{"name": "random"}],
        "prefill": {"scorers": [{"name": "least_requests"}]},
        "decode": {"scorers": [{"name": "round_robin"}]},
    }
    built = build_policy("pairs", schema.PolicyConfig.model_validate(spec))
    record = a_record(built)
    answer = built.decide(a_view(A, B, turn=1), "decode")
    feeding = built.decide(a_view(B, C), "prefill")
    again = built.decide(a_view(A, turn=2), "decode")
    leg = PrefillRecord(feeding, None, None, "ok", 5.0, 0)
    record.attempts = [
        Attempt(answer, None, None, end="connect", prefill=leg),
        Attempt(again, None, None, end="ok", prefill=leg),  # what the leg computed was still there
    ]
    assert (answer.target, feeding.target, again.target) == ("b/0", "b/0", "a/0")
    report = replayed([record], named("least_requests"))
    assert [(one.policy, one.choices, one.same) for one in report.reproduced] == [("pairs", 3, 3)]
    assert report.contended[0].choices == 1  # of these, only the first would have come up for it


def test_what_cannot_be_built_again_says_why() -> None:
    by_hand = list(decided(to("a/0"), [a_view(A, B)]))
    (found,) = replayed(by_hand).reproduced
    assert (found.choices, found.same, found.unbuilt) == (1, 0, NO_SPEC)
    gone = schema.PolicyConfig.model_validate({"scorers": [{"name": "of_a_package_that_is_gone"}]})
    (found,) = replayed(decided(to("a/0", spec=gone), [a_view(A, B)])).reproduced
    assert found.unbuilt is not None
    assert found.unbuilt.startswith("policies.a/0: scorers[0]: unknown scorer 'of_a_package_that_is_gone'")
    replay = Replay()
    newer = LoggedPolicy("next", "d1", {"scorers": [{"name": "random"}], "hats": 3})
    replay.add_policy(newer)
    for entry in read(lines(decided(named("random"), [a_view(A, B)]))):
        if not isinstance(entry, LoggedPolicy):
            replay.add(entry)
    (found,) = replay.report().reproduced
    assert (found.policy, found.unbuilt) == ("random", NO_LINE)


def test_a_spec_of_a_later_version_is_no_crash() -> None:
    replay = Replay()
    replay.add_policy(LoggedPolicy("random", named("random").digest, {"scorers": [{"name": "random"}], "hats": 3}))
    for entry in read(lines(decided(named("random"), [a_view(A, B)]))):
        replay.add_policy(entry) if isinstance(entry, LoggedPolicy) else replay.add(entry)
    (found,) = replay.report().reproduced
    assert found.unbuilt is not None
    assert found.unbuilt.startswith("this version cannot read its definition")
    assert "hats" in found.unbuilt


def test_a_scorer_that_learned_is_told_apart_from_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.BUILTINS[Scorer], "pupil", "tests.suites.plugins:Pupil")  # type: ignore[index]
    spec = schema.PolicyConfig.model_validate({"scorers": [{"name": "pupil"}]})
    live = Policy("learns", [], [WeightedScorer("pupil", 1.0, Pupil())], NamedPicker("best", Best()), spec=spec)
    (found,) = replayed(decided(live, [a_view(A, B, C)] * 9, desk_of(live))).reproduced
    assert (found.choices, found.same, found.learns) == (9, 3, True)


def test_requests_that_were_never_placed_are_counted() -> None:
    policy = named("random")
    report = replayed([a_record(policy), *decided(policy, [a_view(A)]), a_record(None, 5)])
    assert (report.records, report.unplaced, report.choices) == (3, 2, 1)
    assert (report.first_wall_s, report.last_wall_s) == (1_700_000_000.0, 1_700_000_005.0)


@pytest.mark.parametrize("deciding", ["expected_ttft", "least_requests", "warm"])
def test_choices_in_a_large_fleet_come_out_the_same_from_the_few_that_were_shown(deciding: str) -> None:
    records = list(of_a_large_fleet(deciding, 150))
    views = [record.attempts[0].decision.view for record in records]
    assert all(len(view.rows) + view.others == 100 and view.others > 30 for view in views)
    assert len({record.target for record in records}) > 30
    (found,) = replayed(records).reproduced
    assert (found.choices, found.same) == (150, 150)


def test_who_might_have_chosen_somebody_left_out_is_said_to_be_partly_seen() -> None:
    others = [named("round_robin"), named("least_work_left"), named("least_requests")]
    report = replayed(of_a_large_fleet("expected_ttft", 20), *others)
    assert [(one.choices, one.partial) for one in report.contended] == [(20, 20), (20, 0), (20, 20)]
    said = [line for line in remarks(report) if "partly seen" in line]
    assert [line.partition(" for a large")[0] for line in said] == [
        f"[yellow]{name}: 20 of 20 choices are partly seen:" for name in ("round_robin", "least_requests")
    ]


def test_what_a_fallback_decided_was_shown_for_the_policy_that_failed() -> None:
    policy, view = named("expected_ttft"), a_view(A, B, others=98)
    record = a_record(policy, attempts=[Attempt(fallback_policy().decide(view), None, None)])
    known = [*decided(policy, [a_view(A, B)]), record]
    report = replayed(known, named("least_work_left"), named("least_requests"))
    assert [one.partial for one in report.contended] == [0, 1]


def test_small_fleets_are_wholly_seen_by_everybody() -> None:
    report = replayed(of_a_large_fleet("expected_ttft", 5, targets=SMALL), named("round_robin"))
    assert [(one.choices, one.partial) for one in report.contended] == [(5, 0)]
    assert "partly" not in " ".join(remarks(report))


def test_an_empty_log() -> None:
    assert replayed([], named("random")) == ReplayReport(
        records=0,
        unplaced=0,
        first_wall_s=None,
        last_wall_s=None,
        reproduced=(),
        contended=replayed([], named("random")).contended,
        predicted_ms=None,
        measured_ms=None,
    )


def test_predictions_are_held_against_what_came() -> None:
    warm = a_row("a", an_overlap(800), a_load(queued_ms=100.0))
    seen = [a_view(warm, prompt_tokens=1000)] * 4
    records = list(decided(named("random"), seen))
    # each predicted: 100 queued + 5 + 125 * 200 / 1000 + 200 * 900 * 1e-6 = 130.18 ms
    records[0].ttft_ms, records[1].ttft_ms = 100.0, 200.0
    records[2].ttft_ms, records[2].stream = 900.0, False  # the first byte of an answer that does not stream is its last
    records[3].ttft_ms, records[3].attempts[0].end = 5000.0, "connect"
    report = replayed(records, named("least_requests"))
    assert report.predicted_ms == pytest.approx(130.18)
    assert report.measured_ms == pytest.approx(150)
