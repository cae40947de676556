"""Plans over records made by hand: who would decide, where it would go, what that is said to be worth."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import schema
from router.config.sections.experiment import ExperimentConfig
from router.scheduling.experiments.dry_run import DryRun, DryRunReport, TargetMove
from router.scheduling.experiments.policy_set import PolicySet, draw_arm, slice_instances
from router.scheduling.policy.policy import NamedPicker, Policy, WeightedScorer, build_policy
from router.scheduling.policy.record import Attempt, Record, Stages
from scorers.best import Best
from scorers.contract import Row, View
from tests.suites.plugins import Fixed
from tests.suites.properties import examples
from tests.suites.views import a_load, a_row, a_view, an_overlap, views

WARM = a_row("a", an_overlap(800), a_load(requests=1))
COLD = a_row("b", an_overlap(0))
ROWS = (WARM, COLD)


def named(name: str, scorer: str | None = None) -> Policy:
    return build_policy(name, schema.PolicyConfig.model_validate({"scorers": [{"name": scorer or name}]}))


def to(target: str) -> Policy:
    """A policy that always goes there."""
    return Policy(target, [], [WeightedScorer("fixed", 1.0, Untaught(target))], NamedPicker("best", Best()))


@dataclass
class Untaught(Fixed):
    def picked(self, view: View, row: Row) -> None:
        raise AssertionError("a plan teaches nobody")


def alone(policy: Policy) -> PolicySet:
    return PolicySet({policy.name: policy}, policy.name)


def between(shares: dict[str, float], **more: Any) -> PolicySet:
    policies = {name: to(name) for name in shares}
    return PolicySet(policies, next(iter(shares)), ExperimentConfig.model_validate({"seed": 3, "arms": shares, **more}))


def a_record(policy: Policy, *views_: View, **known: Any) -> Record:
    number = known.pop("number", 0)
    record = Record(f"run-{number}", number, 1.0, 100.0, "/v1/completions", "m", True, "local", 9, Stages())
    record.policy = policy
    for name, value in known.items():
        setattr(record, name, value)
    record.attempts = [Attempt(policy.decide(view), None, None) for view in views_]
    return record


def plan(policy_set: PolicySet, records: Iterable[Record]) -> DryRunReport:
    planner = DryRun(policy_set)
    for record in records:
        planner.add(record)
    return planner.report()


VIEW = a_view(*ROWS, prompt_tokens=1000)


def test_where_choices_would_go_and_what_that_is_worth() -> None:
    found = plan(alone(named("least_requests")), [a_record(to("a/0"), VIEW), a_record(to("b/0"), VIEW)])
    # a: 5 + 25 + 200 * 900 * 1e-6 = 30.18 ms; b: 5 + 125 + 1000 * 500 * 1e-6 = 130.5 ms; one of two moves
    assert found == DryRunReport(
        records=2,
        choices=2,
        changed=1,
        ttft_ms=pytest.approx((130.5 - 30.18) / 2),
        overlap_tokens=-400,
        uneven_before=1,  # one each
        uneven_after=2,  # both to b, of two targets
        moves=(TargetMove("a/0", "b/0", 1),),
        other_moves=0,
        blind=0,
        partial=0,
        failed=0,
        fault=None,
    )
    assert found.sentence() == (
        "1 of the last 2 choices would change (50.0%); most often a/0 -> b/0 (1); "
        "predicted per request: 50.2 ms more to the first token, 400 cached prompt tokens less; "
        "the busiest target gets 2.00x the mean, not 1.00x"
    )


@examples(40)
@given(st.lists(views(), min_size=1, max_size=5))
@pytest.mark.parametrize("name", ["expected_ttft", "session_affinity", "random"])
def test_the_policy_that_decided_changes_nothing(name: str, seen: list[View]) -> None:
    policy = named(name)
    found = plan(alone(policy), [a_record(policy, view) for view in seen])
    assert (found.choices, found.changed, found.ttft_ms, found.moves) == (len(seen), 0, 0, ())


def test_a_retry_does_not_look_like_a_change() -> None:
    keeps = named("session_affinity")
    first = a_view(*ROWS, session="s", last_target="a/0")
    retried = a_view(COLD, session="s", last_target="a/0")
    later = a_view(*ROWS, session="s", last_target="b/0")
    found = plan(alone(keeps), [a_record(keeps, first, retried), a_record(keeps, later)])
    assert (found.choices, found.changed) == (2, 0)


def test_sessions_stay_where_the_new_regime_would_have_sent_them() -> None:
    seen = [a_view(*ROWS, session="s", last_target=last) for last in ("b/0", "a/0", "a/0")]
    found = plan(alone(named("session_affinity")), [a_record(to("a/0"), view) for view in seen])
    assert found.moves == (TargetMove("a/0", "b/0", 3),)


def test_each_unit_is_decided_by_its_arm() -> None:
    policy_set = between({"a/0": 50, "b/0": 50})
    units = [b"unit %d" % number for number in range(40)]
    found = plan(policy_set, [a_record(to("a/0"), VIEW, unit=unit) for unit in units])
    moving = [draw_arm(3, {"a/0": 50, "b/0": 50}, unit) for unit in units].count("b/0")
    assert found.changed == moving
    assert 0 < moving < 40


def test_units_of_an_arm_that_was_rolled_back_go_to_the_first_one() -> None:
    policy_set = between({"a/0": 50, "b/0": 50}).with_rollback("b/0")
    found = plan(policy_set, [a_record(to("a/0"), VIEW, unit=b"%d" % number) for number in range(40)])
    assert found.changed == 0


@pytest.mark.parametrize(
    ("unit", "shared"),
    [
        ("session", {"session": "s"}),
        ("program", {"session": "s"}),
        ("user", {"session": "s"}),
        ("api_key", {"client": "k"}),
        ("time", {}),
    ],
)
def test_without_a_known_unit_requests_of_one_still_go_together(unit: str, shared: dict[str, str]) -> None:
    policy_set = between({"a/0": 50, "b/0": 50}, unit=unit)
    view = VIEW._replace(session=shared.get("session"))
    found = plan(policy_set, [a_record(to("a/0"), view, number=n, client=shared.get("client")) for n in range(40)])
    assert found.changed in (0, 40)


def test_sub_agents_go_with_their_program() -> None:
    policy_set = between({"a/0": 50, "b/0": 50}, unit="program")
    family = [VIEW._replace(session=f"s{n}", program="s") for n in range(40)]
    found = plan(policy_set, [a_record(to("a/0"), view, number=n) for n, view in enumerate(family)])
    assert found.changed in (0, 40)


def test_requests_as_units_fall_apart_by_their_shares() -> None:
    policy_set = between({"a/0": 75, "b/0": 25}, unit="request")
    together = VIEW._replace(session="s")
    found = plan(policy_set, [a_record(to("a/0"), together, number=number) for number in range(400)])
    assert 60 <= found.changed <= 140  # 100 expected, 8.7 is a standard deviation


def test_an_isolated_arm_chooses_from_its_own_slice() -> None:
    rows = tuple(a_row(name) for name in "abcd")
    seen = a_view(*rows)
    policy_set = between({"a/0": 50, "b/0": 50}, isolate="instances")
    owners = slice_instances(3, (("a/0", 50.0), ("b/0", 50.0)), tuple("abcd"))
    units = [b"%d" % number for number in range(60)]
    for unit in units:
        arm = policy_set.assign(unit).arm
        found = plan(policy_set, [a_record(to("c/0"), seen, unit=unit)])
        target = found.moves[0].target if found.moves else "c/0"
        assert owners[target.partition("/")[0]] == arm


def test_a_choice_of_somebody_elses_slice_stays_possible_where_there_is_no_other() -> None:
    policy_set = between({"a/0": 50, "b/0": 50}, isolate="instances")
    only = a_view(a_row("a"))
    found = plan(policy_set, [a_record(to("a/0"), only, unit=b"%d" % number) for number in range(20)])
    assert (found.choices, found.changed) == (20, 0)


def test_a_policy_that_was_asked_for_by_name_still_decides() -> None:
    policies = {"b/0": to("b/0"), "asked": to("a/0")}
    asked = a_record(named("asked", "least_requests"), VIEW, asked_by="ops")  # went to b
    assert plan(PolicySet(policies, "b/0"), [asked]).moves == (TargetMove("b/0", "a/0", 1),)
    assert plan(PolicySet({"b/0": to("b/0")}, "b/0"), [asked]).changed == 0  # gone: as it was


def test_records_that_were_never_placed_are_counted_and_passed_over() -> None:
    found = plan(alone(to("a/0")), [a_record(to("a/0")), a_record(to("a/0"), VIEW)])
    assert (found.records, found.choices) == (2, 1)


def test_failures_are_counted_and_the_first_is_told() -> None:
    found = plan(alone(to("broken")), [a_record(to("a/0"), VIEW)] * 3)
    assert (found.choices, found.failed, found.ttft_ms) == (0, 3, None)
    assert found.sentence() == (
        "3 choices fail, the fallback would make them: policy broken: fixed: RuntimeError: boom"
    )


def test_what_was_recorded_without_a_look_at_caches_is_told() -> None:
    unseen = a_view(a_row("a"), a_row("b"))
    found = plan(
        alone(named("prefix_overlap")),
        [
            a_record(to("a/0"), unseen),  # nobody looked
            a_record(to("a/0"), VIEW),
            a_record(named("prefix_overlap"), unseen),  # somebody did, and found nothing out
        ],
    )
    assert (found.choices, found.blind) == (3, 1)
    assert found.lines()[-1] == "1 were recorded without a look at caches, and were tried without"
    assert plan(alone(named("least_requests")), [a_record(to("a/0"), unseen)]).blind == 0  # needs none


def test_what_was_recorded_without_all_of_a_large_fleet_is_told() -> None:
    cut = VIEW._replace(others=98)
    shown_for = named("expected_ttft")
    records = [a_record(shown_for, cut), a_record(shown_for, VIEW), a_record(shown_for, cut)]
    found = plan(alone(named("least_requests")), records)
    assert (found.choices, found.partial) == (3, 2)
    assert found.lines()[-1] == (
        "2 were recorded with only those of a large fleet who could win then, and were tried on these: "
        "fewer may seem to change than would"
    )
    same_measure = plan(alone(named("least_work_left")), records)
    assert (same_measure.partial, "large fleet" in same_measure.sentence()) == (0, False)
    asked = [a_record(shown_for, cut, asked_by="ops")]  # and goes on deciding for them
    assert plan(alone(named("least_requests")), asked).partial == 0


def test_a_slice_of_those_who_could_win_is_not_who_could_win_in_that_slice() -> None:
    spec = {"scorers": [{"name": "expected_ttft"}]}
    policies = {name: build_policy(name, schema.PolicyConfig.model_validate(spec)) for name in "xy"}
    halves = ExperimentConfig.model_validate({"seed": 3, "arms": {"x": 50, "y": 50}, "isolate": "instances"})
    records = [a_record(policies["x"], VIEW._replace(others=98)), a_record(policies["x"], VIEW)]
    assert plan(PolicySet(policies, "x", halves), records).partial == 1
    together = halves.model_copy(update={"isolate": "none"})
    assert plan(PolicySet(policies, "x", together), records).partial == 0


def test_nothing_to_go_by() -> None:
    assert plan(alone(to("a/0")), []).sentence() == "there are no earlier choices to try it on"


def test_only_the_most_frequent_moves_are_named() -> None:
    rows = tuple(a_row(f"e{number:02}") for number in range(14))
    seen = a_view(*rows)
    records = [a_record(to(f"e{i:02}/0"), seen) for i in range(1, 14) for _ in range(i)]
    found = plan(alone(to("e00/0")), records)
    assert found.changed == 91  # 1 + 2 + ... + 13
    assert [move.requests for move in found.moves] == [13, 12, 11, 10, 9, 8, 7, 6, 5, 4]
    assert found.other_moves == 6  # 3 + 2 + 1
    assert "most often e13/0 -> e00/0 (13), e12/0 -> e00/0 (12), e11/0 -> e00/0 (11); 55 in other ways" in (
        found.sentence()
    )


def test_a_plan_is_json() -> None:
    found = plan(alone(named("least_requests")), [a_record(to("a/0"), VIEW)])
    assert msgspec.json.decode(msgspec.json.encode(found))["moves"] == [
        {"source": "a/0", "target": "b/0", "requests": 1}
    ]
