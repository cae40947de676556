"""The operator's line as stories: what is switched, what is refused, what is remembered, who waits for whom."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from router.clock import SystemClock
from router.control.control import ControlConflict
from router.control.duty import Duty
from router.errors import ConfigError, NotFound
from router.scheduling.experiments.results import Finding
from router.telemetry.audit_log import AuditLog
from tests.router.control.control_plane import (
    BROKEN,
    EXPERIMENT,
    TEXTS,
    ControlPlane,
    crowded_holder,
    experiment,
    idle_holder,
)
from tests.suites.views import a_row, a_view, an_overlap

MAIN = "fleet: {{instances: [{{url: 'http://127.0.0.1:1'}}]}}\npolicies_dir: policies\nactive: {active}\n"


def a_finding(arm: str, cause: str = "guard") -> Finding:
    return Finding(arm, cause, "ttft_p90", f"{arm} is slow", 60, 1e5, 900.0, 300.0)  # type: ignore[arg-type]


# activate, and its plan


async def test_activate_swaps_plans_and_writes_it_down() -> None:
    house = ControlPlane()
    house.decided(crowded_holder(), crowded_holder(), crowded_holder(), idle_holder())
    switch = await house.control.activate("far", "ann")
    assert house.active == "far"
    # far takes b where a has requests: 3 of 4.
    assert switch.plan is not None
    assert (switch.plan.choices, switch.plan.changed) == (4, 3)
    assert [(move.source, move.target, move.requests) for move in switch.plan.moves] == [("a/0", "b/0", 3)]
    entry = house.audit.latest(1)[0]
    assert (entry.who, entry.what, entry.at_wall_s) == ("ann", "activate far", 5000.0)
    assert entry.before is not None
    assert (entry.before.active, entry.after.active) == ("near", "far")
    assert entry.plan is not None
    assert entry.plan[0] == "3 of the last 4 choices would change (75.0%)"
    assert house.control.switches == {"admin": 1}


async def test_a_dry_run_says_the_same_and_does_nothing() -> None:
    house = ControlPlane()
    house.decided(crowded_holder())
    before = house.control.policy_set
    told = await house.control.activate("far", "ann", dry_run=True)
    assert (told.dry_run, told.changed, told.in_force.active) == (True, True, "far")
    assert house.control.policy_set is before
    assert house.words == ["start"]
    assert (await house.control.activate("far", "ann"))._replace(dry_run=True) == told


async def test_what_is_so_already_is_no_switch() -> None:
    house = ControlPlane()
    switch = await house.control.activate("near", "ann")
    assert (switch.changed, switch.plan, switch.notes) == (False, None, ("nothing changes: it is so already",))
    assert house.words == ["start"]


async def test_nobody_knows_that_policy() -> None:
    house = ControlPlane()
    with pytest.raises(NotFound, match='unknown policy "nera": did you mean "near"'):
        await house.control.activate("nera", "ann")
    with pytest.raises(NotFound, match='unknown policy "roundrobin": did you mean "round_robin"'):
        await house.control.activate("roundrobin", "ann")
    with pytest.raises(NotFound, match='unknown policy "x": known here: far, near, other'):
        house.control.dump_policy("x")


# admission


async def test_an_admission_rule_is_switched_written_down_and_undone_as_policies_are() -> None:
    house = ControlPlane()
    text = "admission: {enabled: true, rule: {name: thunderagent, pause_above: 0.9}}"
    told = await house.control.put_admission(text, "ann", dry_run=True)
    assert (told.dry_run, told.changed, house.control.policy_set.admission.enabled) == (True, True, False)
    await house.control.put_admission(text, "ann")
    entry = house.audit.latest(1)[0]
    assert (entry.what, entry.who) == ("admit by thunderagent", "ann")
    assert entry.after.admission == {"enabled": True, "rule": {"name": "thunderagent", "pause_above": 0.9}}
    await house.control.activate("far", "ann")
    assert house.control.policy_set.admission.rule.name == "thunderagent", "another policy leaves it as it is"
    await house.control.undo("ann")
    await house.control.undo("ann")
    assert not house.control.policy_set.admission.enabled


async def test_a_rule_that_is_unknown_or_refuses_its_parameters_changes_nothing() -> None:
    house = ControlPlane()
    for text, complaint in [
        ("enabled: true\nrule: {name: fitt}", "did you mean 'fit'"),
        ("enabled: true\nrule: {name: thunderagent, pause_above: 2}", "found 2.0, wanted a share from 0 to 1"),
        ("enabled: true\nrules: {name: fit}", "rules"),
    ]:
        with pytest.raises(ConfigError, match=complaint):
            await house.control.put_admission(text, "ann")
    assert not house.control.policy_set.admission.enabled
    assert house.words == ["start"]


# put


async def test_a_policy_that_is_not_in_use_changes_no_choice() -> None:
    house = ControlPlane()
    house.decided(crowded_holder())
    switch = await house.control.put_policy("new", TEXTS["far"], "ann")
    assert (switch.changed, switch.plan) == (True, None)
    assert switch.notes == (
        "new is in memory only: no file was written",
        "no policy in use changes, so no choice does",
    )
    assert "new" in house.control.policy_set.policies
    assert "name: least_requests" in house.control.dump_policy("new")


async def test_a_policy_in_use_takes_effect_and_others_stay_the_objects_they_are() -> None:
    house = ControlPlane()
    house.decided(crowded_holder())
    before = house.control.policy_set
    switch = await house.control.put_policy("near", TEXTS["far"], "ann")
    assert switch.plan is not None
    assert switch.plan.changed == 1
    assert house.control.policy_set.policies["far"] is before.policies["far"]
    assert house.control.policy_set.policy is not before.policy


async def test_plug_ins_that_are_the_same_go_on_with_what_they_learned() -> None:
    house = ControlPlane()
    before = house.control.policy_set.policies["near"].scorers[0].scorer
    await house.control.put_policy("near", "scorers: [{name: prefix_overlap, weight: 2}]", "ann")
    after = house.control.policy_set.policies["near"].scorers[0]
    assert (after.scorer is before, after.weight) == (True, 2)


async def test_a_shipped_policy_can_be_activated_without_being_loaded_before() -> None:
    house = ControlPlane()
    plan = await house.control.activate("round_robin", "ann", dry_run=True)
    assert "round_robin" not in house.control.policy_set.policies
    switch = await house.control.activate("round_robin", "ann")
    assert switch == plan._replace(dry_run=False)
    assert house.control.policy_set.active == "round_robin"
    assert house.words == ["start", "activate round_robin"]
    await house.control.undo("ann")
    assert "round_robin" not in house.control.policy_set.policies


async def test_an_experiment_may_name_shipped_policies_that_are_not_loaded() -> None:
    house = ControlPlane()
    text = "arms: {near: 50, round_robin: 50}\nshadows: [least_requests]"
    await house.control.start_experiment(text, "ann", dry_run=True)
    assert "round_robin" not in house.control.policy_set.policies
    await house.control.start_experiment(text, "ann")
    assert {"near", "round_robin", "least_requests"} <= house.control.policy_set.policies.keys()
    await house.control.undo("ann")
    assert "round_robin" not in house.control.policy_set.policies


async def test_put_and_activate_is_one_switch() -> None:
    house = ControlPlane()
    await house.control.put_policy("new", TEXTS["far"], "ann", activate=True)
    assert house.active == "new"
    assert house.words == ["start", "put policy new and activate it"]
    await house.control.undo("ann")
    assert house.active == "near"
    assert "new" not in house.control.policy_set.policies


async def test_several_policies_all_or_none() -> None:
    house = ControlPlane()
    before = house.control.policy_set
    with pytest.raises(ConfigError, match="unknown scorer 'nobody'"):
        await house.control.put_policies(f"{{one: {{{TEXTS['far']}}}, two: {{{BROKEN}}}}}", "ann")
    assert house.control.policy_set is before
    await house.control.put_policies(f"{{one: {{{TEXTS['far']}}}, two: {{{TEXTS['near']}}}}}", "ann")
    assert {"one", "two"} <= set(house.control.policy_set.policies)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("new", "scorer: []", 'policy new:1: scorer: unknown key "scorer": did you mean "scorers"?'),
        ("new", "{", "policy new:1: not YAML"),
        ("new", " ", "policy new:1: the text is empty"),
        ("new", "[" * 3000, "policy new:1: not YAML: nested more than 32 deep"),
        ("new", BROKEN, "policy new:1: scorers[0]: unknown scorer 'nobody'"),
        ("a b", TEXTS["far"], "policy 'a b': a name has 1 to 100 letters, digits, dots, dashes or underscores"),
        ("fallback", TEXTS["far"], "found the name of the policy that decides when another fails"),
    ],
)
async def test_a_wrong_text_changes_nothing_and_is_remembered(name: str, text: str, said: str) -> None:
    house = ControlPlane()
    before = house.control.policy_set
    with pytest.raises(ConfigError) as refused:
        await house.control.put_policy(name, text, "ann")
    assert said in str(refused.value)
    assert house.control.policy_set is before
    assert house.words == ["start"]
    assert house.control.failures == {"admin": 1}
    assert said in house.control.errors["admin"].text
    await house.control.put_policy("fine", TEXTS["far"], "ann")
    assert house.control.errors == {}
    assert house.control.failures == {"admin": 1}


async def test_a_try_that_fails_is_not_remembered() -> None:
    house = ControlPlane()
    with pytest.raises(ConfigError):
        await house.control.put_policy("new", BROKEN, "ann", dry_run=True)
    assert (house.control.errors, house.control.failures) == ({}, {})


# undo


async def test_undo_walks_back_and_says_when_there_is_nothing_left() -> None:
    house = ControlPlane()
    for name in ("far", "other"):
        await house.control.activate(name, "ann")
    told = await house.control.undo("bob")
    assert told.notes[0] == "undone: activate other"
    assert house.active == "far"
    await house.control.undo("bob")
    assert house.active == "near"
    with pytest.raises(ControlConflict, match="there is no switch left to undo"):
        await house.control.undo("bob")
    assert house.words == ["start", "activate far", "activate other", "undo", "undo"]


async def test_undo_is_bounded() -> None:
    house = ControlPlane()
    for i in range(25):
        await house.control.activate(("far", "other")[i % 2], "ann")
    assert len(house.control.describe_policies()["undo"]) == 20
    # 25 switches: far at 1, 3, .. 25. After 20 undone, the 5th is in force.
    for _ in range(20):
        await house.control.undo("ann")
    assert house.active == "far"
    with pytest.raises(ControlConflict):
        await house.control.undo("ann")


async def test_a_tried_undo_undoes_nothing() -> None:
    house = ControlPlane()
    await house.control.activate("far", "ann")
    assert (await house.control.undo("ann", dry_run=True)).in_force.active == "near"
    assert house.active == "far"
    assert house.control.describe_policies()["undo"] == ["activate far"]


# one after the other


async def test_two_switches_at_once_come_one_after_the_other() -> None:
    house = ControlPlane(clock=SystemClock())
    house.decided(*[crowded_holder()] * 2000)
    first = asyncio.create_task(house.control.activate("far", "ann"))
    await house.ring.looked_through.wait()  # it is planning, for many slices
    second = asyncio.create_task(house.control.put_policy("new", TEXTS["far"], "bob"))  # nothing to plan: it is quick
    third = asyncio.create_task(house.control.undo("eve"))
    await asyncio.gather(first, second, third)
    assert house.words[:2] == ["start", "activate far"]
    assert sorted(house.words[2:]) == ["put policy new", "undo"]


async def test_a_plan_goes_through_the_records_in_their_order() -> None:
    house = ControlPlane()
    await house.control.put_policy(
        "loyal", "scorers: [{name: prefix_overlap}, {name: session_affinity, weight: 10}]", "ann"
    )
    b_holds = a_view(a_row("a", an_overlap(0)), a_row("b", an_overlap(64)), prompt_tokens=64, session="s")
    a_holds = a_view(a_row("a", an_overlap(64)), a_row("b", an_overlap(0)), prompt_tokens=64, session="s")
    house.decided(a_holds, b_holds, b_holds)
    # `near` went to a, b, b. `loyal` begins at a and stays there, twice where `near` did not. From the newest on it
    # would find the session at b first.
    switch = await house.control.activate("loyal", "ann")
    assert switch.plan is not None
    assert [(move.source, move.target, move.requests) for move in switch.plan.moves] == [("b/0", "a/0", 2)]


async def test_planning_lets_others_run() -> None:
    house = ControlPlane(clock=SystemClock())
    house.decided(*[crowded_holder()] * 3000)
    turns = 0
    switching = asyncio.create_task(house.control.activate("far", "ann"))
    while not switching.done():
        await asyncio.sleep(0)
        turns += 1
    assert (await switching).plan is not None
    assert turns >= 5  # 3,000 choices take far more than five slices of 2 ms


async def test_a_rollback_waits_for_nobody_and_is_not_lost_in_a_switch_under_way() -> None:
    house = ControlPlane(clock=SystemClock(), running=experiment(), active="other")
    house.decided(*[crowded_holder()] * 2000)
    switching = asyncio.create_task(house.control.put_policy("other", "scorers: [{name: random}]", "ann"))
    await house.ring.looked_through.wait()  # it is planning
    house.control.handle_finding(a_finding("far"))
    assert house.control.policy_set.rolled_back == {"far"}
    assert not switching.done()
    await switching
    assert house.control.policy_set.rolled_back == {"far"}
    assert house.control.policy_set.policy.scorers[0].name == "random"
    assert house.words == ["start", "rollback", "put policy other"]


# experiments


async def test_an_experiment_begins_and_ends() -> None:
    house = ControlPlane()
    started = await house.control.start_experiment(EXPERIMENT, "ann")
    assert started.notes == ("the experiment starts now, without results from before",)
    assert house.core.experiment is not None
    told = house.control.describe_experiment()
    assert told["running"] is True
    assert told["experiment"]["arms"] == {"near": 50, "far": 50}
    assert [arm["arm"] for arm in told["report"]["arms"]] == ["near", "far"]
    assert any("share caches" in sentence for sentence in told["sentences"])
    ended = await house.control.end_experiment("ann")
    assert ended.notes == ("near decides for everybody",)
    after = house.control.describe_experiment()
    assert (after["running"], after["last"]["ended_at_wall_s"]) == (False, 5000.0)
    with pytest.raises(ControlConflict, match="no experiment is running"):
        await house.control.end_experiment("ann")


async def test_shadows_alone_are_beside_the_active_policy() -> None:
    house = ControlPlane()
    await house.control.start_experiment("shadows: [far]", "ann")
    told = house.control.describe_experiment()
    assert (told["running"], told["experiment"]["arms"]) == (True, {"near": 100})
    assert [shadow.policy.name for shadow in house.core.selector.shadows] == ["far"]


async def test_the_same_experiment_again_is_no_switch() -> None:
    house = ControlPlane()
    await house.control.start_experiment(EXPERIMENT, "ann")
    trial = house.core.experiment
    again = await house.control.start_experiment("experiment: " + EXPERIMENT, "ann")
    assert again.changed is False
    assert house.core.experiment is trial


async def test_activate_ends_a_running_experiment() -> None:
    house = ControlPlane(running=experiment())
    switch = await house.control.activate("other", "ann")
    assert "the running experiment ends" in switch.notes
    assert house.control.policy_set.experiment is None
    assert house.core.experiment is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{arms: {near: 50, fra: 50}}", 'experiment:1: arms.fra: unknown policy "fra": did you mean "far"?'),
        ("experiment:\n  arms: {near: 100}\n  shadows: [x]\n", "experiment:3: experiment.shadows[0]: unknown policy"),
        ("{arms: {near: 50, far: 40}}", "experiment:1: arms: found shares that add up to 90, wanted 100 (percent)"),
        ("{arms: {near: -10, far: 110}}", "arms.near: found the share -10, wanted more than 0"),
        ("{arms: {near: 50, near: 50}}", "experiment:1: arms.near: given twice"),
        ("experiment: {arms: {near: 100}}\nactive: far", "unknown key"),
    ],
)
async def test_wrong_experiments(text: str, said: str) -> None:
    house = ControlPlane()
    with pytest.raises(ConfigError) as refused:
        await house.control.start_experiment(text, "ann")
    assert said in str(refused.value)
    assert house.control.policy_set.experiment is None


# rollbacks


async def test_the_guard_takes_an_arm_out_once() -> None:
    house = ControlPlane(running=experiment())
    house.control.handle_finding(a_finding("far"))
    house.control.handle_finding(a_finding("far"))
    assert house.control.policy_set.rolled_back == {"far"}
    assert house.words == ["start", "rollback"]
    entry = house.audit.latest(1)[0]
    assert (entry.who, entry.arm, entry.why) == ("guard", "far", "far is slow")
    assert entry.after.rolled_back == ["far"]
    assert house.control.switches == {"guard": 1}


async def test_without_its_first_arm_an_experiment_is_over() -> None:
    house = ControlPlane(running=experiment(), active="other")
    house.control.handle_finding(a_finding("near", "limit"))
    assert house.control.policy_set.experiment is None
    assert house.active == "other"
    assert house.audit.latest(1)[0].arm == "near"


async def test_a_guard_that_shall_only_report_only_reports() -> None:
    house = ControlPlane(running=experiment(guard={"action": "report"}))
    before = house.control.policy_set
    house.control.handle_finding(a_finding("far"))
    assert house.control.policy_set is before
    assert (house.audit.latest(1)[0].what, house.audit.latest(1)[0].arm) == ("alarm", "far")
    house.control.handle_finding(a_finding("far", "limit"))  # a limit is no matter of opinion
    assert house.control.policy_set.rolled_back == {"far"}


async def test_an_undo_does_not_bring_back_an_arm() -> None:
    house = ControlPlane()
    await house.control.start_experiment(EXPERIMENT, "ann")
    house.control.handle_finding(a_finding("far"))
    await house.control.activate("other", "ann")
    told = await house.control.undo("ann")
    assert house.control.policy_set.rolled_back == {"far"}
    assert any("was rolled back in this very experiment" in note for note in told.notes)


async def test_another_seed_is_another_experiment() -> None:
    house = ControlPlane()
    await house.control.start_experiment(EXPERIMENT, "ann")
    house.control.handle_finding(a_finding("far"))
    await house.control.start_experiment(EXPERIMENT.replace("seed: 1", "seed: 2"), "ann")
    assert house.control.policy_set.rolled_back == set()
    assert house.control.policy_set.experiment is not None


async def test_a_rollback_is_kept_over_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "audit.jsonl"
    house = ControlPlane(running=experiment(), audit=AuditLog(file))
    house.control.handle_finding(a_finding("far"))
    assert await house.audit.flush()
    again = ControlPlane(running=experiment(), audit=AuditLog(file))
    assert again.control.policy_set.rolled_back == {"far"}
    assert "was rolled back in this very experiment and stays so" in caplog.text
    assert ControlPlane(running=experiment(seed=2), audit=AuditLog(file)).control.policy_set.rolled_back == set()


async def test_an_experiment_that_lost_its_first_arm_stays_over(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    house = ControlPlane(running=experiment(), audit=AuditLog(file))
    house.control.handle_finding(a_finding("near", "limit"))
    assert await house.audit.flush()
    assert ControlPlane(running=experiment(), audit=AuditLog(file)).control.policy_set.experiment is None


# files


class Files:
    """A main file with `policies_dir`."""

    def __init__(self, folder: Path) -> None:
        self.main = folder / "main.yaml"
        self.folder = folder / "policies"
        self.folder.mkdir()
        for name, text in TEXTS.items():
            self.policy(name, text)
        self.say("near")

    def policy(self, name: str, text: str) -> None:
        (self.folder / f"{name}.yaml").write_text(text)

    def say(self, active: str, more: str = "") -> None:
        self.main.write_text(MAIN.format(active=active) + more)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def test_a_changed_admission_section_takes_effect_and_a_wrong_one_does_not(files: Files) -> None:
    house = await ControlPlane.following(files.main)
    files.say("near", "admission: {enabled: true, rule: {name: concurrency, per_target: 3}}\n")
    assert await house.control.reload_files()
    assert house.control.policy_set.admission.rule.model_extra == {"per_target": 3}
    files.say("near", "admission: {enabled: true, rule: {name: concurrency, per_target: 0}}\n")
    assert await house.control.reload_files() is None
    assert "per_target: found 0, wanted at least 1" in house.control.errors["files"].text
    await house.control.put_admission("enabled: true", "ann")
    files.say("near", "admission: {enabled: true, rule: {name: concurrency, per_target: 3}}\n")
    assert await house.control.reload_files()
    assert house.control.policy_set.admission.rule.name == "fit", "the file is as it was"
    assert house.control.needs_restart == []


async def test_files_that_say_what_is_in_force_change_nothing(files: Files) -> None:
    house = await ControlPlane.following(files.main)
    switch = await house.control.reload_files()
    assert switch is not None
    assert switch.changed is False
    assert house.words == ["start"]
    assert house.control.watched_paths() == [files.main, files.folder]


async def test_a_changed_file_takes_effect(files: Files) -> None:
    house = await ControlPlane.following(files.main)
    house.decided(crowded_holder())
    files.say("far")
    switch = await house.control.reload_files()
    assert switch is not None
    assert switch.plan is not None
    assert switch.plan.changed == 1
    assert house.active == "far"
    files.policy("far", "scorers: [{name: least_requests, weight: 2}]")
    assert await house.control.reload_files()
    assert house.control.policy_set.policy.scorers[0].weight == 2
    files.say("far", "experiment: " + EXPERIMENT + "\n")
    assert await house.control.reload_files()
    assert house.control.policy_set.experiment is not None
    files.say("far")
    assert await house.control.reload_files()
    assert house.control.policy_set.experiment is None
    assert house.control.switches == {"files": 4}


async def test_a_broken_file_changes_nothing_and_heals(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    house = await ControlPlane.following(files.main)
    before = house.control.policy_set
    for broken in (BROKEN, "scorers: [", BROKEN):
        files.policy("far", broken)
        assert await house.control.reload_files() is None
        assert house.control.policy_set is before
    assert house.control.failures == {"files": 3}
    assert "unknown scorer 'nobody'" in house.control.describe_policies()["errors"]["files"]["text"]
    assert "refused, the policies in force stay" in caplog.text
    files.policy("far", TEXTS["far"])
    assert await house.control.reload_files()
    assert house.control.describe_policies()["errors"] == {}


async def test_the_same_error_is_logged_once(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    house = await ControlPlane.following(files.main)
    files.say("nobody")
    for _ in range(3):
        assert await house.control.reload_files() is None
    assert caplog.text.count('unknown policy "nobody"') == 1
    assert house.control.failures == {"files": 3}


async def test_an_untouched_file_undoes_nothing_that_was_done_here(files: Files) -> None:
    house = await ControlPlane.following(files.main)
    await house.control.put_policy("far", TEXTS["other"], "ann", activate=True)
    files.policy("third", TEXTS["near"])
    assert await house.control.reload_files()
    assert (house.active, set(house.control.policy_set.policies)) == ("far", {"near", "far", "other", "third"})
    assert house.control.policy_set.policy.scorers[0].name == "queue_depth"
    files.policy("far", "scorers: [{name: random}]")  # it changes: the file wins
    assert await house.control.reload_files()
    assert (house.active, house.control.policy_set.policy.scorers[0].name) == ("far", "random")


async def test_a_policy_chosen_at_the_start_stays_until_the_files_say_another(files: Files) -> None:
    """`serve --policy NAME`: in force is not what the files say, and another change of theirs is no reason."""
    files.say("far")
    house = await ControlPlane.following(files.main)  # which has `near` in force
    files.policy("other", "scorers: [{name: random}]")
    assert await house.control.reload_files()
    assert house.active == "near"
    files.say("other")
    assert await house.control.reload_files()
    assert house.active == "other"


async def test_a_policy_in_use_does_not_vanish_with_its_file(files: Files) -> None:
    house = await ControlPlane.following(files.main)
    await house.control.activate("far", "ann")
    (files.folder / "far.yaml").unlink()
    assert await house.control.reload_files() is None
    problem = house.control.errors["files"].text
    assert problem == "policies.far: removed from the files while in use; activate another first"
    await house.control.activate("near", "ann")
    assert await house.control.reload_files()
    assert set(house.control.policy_set.policies) == {"near", "other"}


async def test_what_needs_a_restart_is_named(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    house = await ControlPlane.following(files.main)  # a change right after the start counts, too
    files.say("far", "limits: {grace_s: 1}\nlog: {level: debug}\n")
    assert await house.control.reload_files()
    assert house.active == "far"
    assert house.control.needs_restart == ["limits.grace_s", "log.level"]
    assert "changes of these keys need a restart: limits.grace_s, log.level" in caplog.text
    files.say("far")
    assert await house.control.reload_files()
    assert house.control.needs_restart == []


async def test_without_a_file_there_is_nothing_to_read() -> None:
    house = ControlPlane()
    assert await house.control.reload_files() is None
    assert house.control.watched_paths() == []


async def test_a_worker_that_takes_the_duties_applies_what_changes_in_the_files_from_then_on(files: Files) -> None:
    worker = ControlPlane()
    await worker.control.put_policy("far", TEXTS["other"], "ann", activate=True)
    await worker.control.follow_file(files.main)
    assert worker.control.watched_paths() == [files.main, files.folder]
    unchanged = await worker.control.reload_files()
    assert unchanged is not None
    assert unchanged.changed is False
    assert (worker.active, worker.control.policy_set.policy.scorers[0].name) == ("far", "queue_depth")
    files.say("other", "limits: {grace_s: 1}\n")
    assert await worker.control.reload_files()
    assert worker.active == "other"
    assert worker.control.needs_restart == ["limits.grace_s"]


async def test_files_that_are_broken_when_a_worker_takes_the_duties_are_an_error_until_they_heal(files: Files) -> None:
    worker = ControlPlane()
    files.policy("far", "scorers: [")
    await worker.control.follow_file(files.main)
    assert "far.yaml" in worker.control.errors["files"].text
    files.policy("far", TEXTS["far"])
    files.say("far")
    assert await worker.control.reload_files()
    assert worker.active == "far"
    assert worker.control.errors == {}


# workers of a host


async def test_of_the_workers_of_a_host_the_one_on_duty_logs_the_start_and_counts_switches_of_others() -> None:
    on_duty, other = (ControlPlane(duty=Duty(run, held=run == "a")) for run in "ab")
    assert (on_duty.words, other.words) == (["start"], [])
    for confirmed, active in ((False, "near"), (True, "far")):
        for worker in (on_duty, other):
            after = replace(worker.control.policy_set, active="far")
            await worker.control.follow_replica("activate far", Constant(after), Constant(confirmed), back=False)
            assert worker.active == active
    assert (+on_duty.control.switches, +other.control.switches) == ({"replicas": 1}, {})


class Constant:
    """A function of anything that returns `value`."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, *_: object) -> Any:
        return self.value
