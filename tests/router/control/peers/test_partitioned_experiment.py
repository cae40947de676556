"""A split of a model over three processes: counted whole, each unit at one of them, and a bad arm is out at all."""

from __future__ import annotations

from random import Random

import pytest

from router.control.peers.experiment_messages import UnitRequestBegan
from router.control.splits import SplitGuard
from router.scheduling.experiments.model_split import ModelSplit
from tests.router.control.peers.partitioned import (
    SPEC,
    Group,
    Process,
    a_split,
    estimates,
    figures,
    finish_all,
    look,
    of_policies,
    of_split,
    processes,
    replay,
)
from tests.router.scheduling.experiments.traffic import Behaviour, a_record, finish, traffic

ARMS = {"near": 50.0, "far": 50.0}
GUARD = {"metric": "error_rate", "min_units": 10, "alpha": 0.05}


def one_split() -> list[ModelSplit]:
    return [a_split()]


def guarded() -> list[ModelSplit]:
    return [a_split("code", seed=1), a_split(observe_s=1, guard=GUARD, limits={})]


def send(group: Group, number: int, bad: str) -> None:
    """Answer a request of a session of its own at any process; on the arm `bad` it fails."""
    unit, process = number.to_bytes(8), list(group.values())[number % len(group)]
    split = process.splits[-1]
    arm, drawn = split.assign(unit)
    record = a_record(number, process.clock.now())
    if drawn:
        split.begin(arm, unit, record)
    for each in group.values():
        each.clock.advance(2.0)
    split.end(finish(record, status=500 if arm == bad else 200))


def test_it_is_counted_whole_and_each_unit_at_one_process() -> None:
    planted = {"far": Behaviour(slower=1.3, fails=0.1)}
    events = traffic(ARMS, planted, 150, seed=3)
    _, alone = processes("a", None, one_split)
    _, group = processes("abc", None, one_split)
    for each in (alone, group):
        replay(each, traffic(ARMS, planted, 150, seed=3), Random(1), of_split)
        finish_all(each, of_split)
    expected = alone["a"].split.experiment.report()
    assert sum(arm.requests for arm in expected.arms) == len(events) // 2
    assert len(expected.arms[0].standings) == 6, "lengths of answers, too"
    own = [sum(process.split.experiment.units.values()) for process in group.values()]
    assert sum(own) == len({event.unit for event in events})
    assert min(own) > 25
    for process in group.values():
        assert figures(process.split.experiment.report()) == figures(expected)
        assert estimates(process.split.experiment.report()) == pytest.approx(estimates(expected))


def test_a_killed_process_leaves_what_it_counted_and_no_blame_for_what_it_had_open() -> None:
    network, group = processes("abc", None, one_split)
    replay(group, traffic(ARMS, {}, 100, seed=5), Random(3), of_split)
    finish_all(group, of_split)
    before = sum(arm.requests for arm in group["a"].split.experiment.report().arms)
    c, group = group["c"], {run: group[run] for run in "ab"}
    for number in range(30):
        c.split.begin("near", b"open %d" % number, a_record(10_000 + number, c.clock.now()))
    passed = sum(message.unit[:4] == b"open" for message in network.messages(UnitRequestBegan, "c"))
    failed = [arm.failed for arm in group["a"].split.experiment.report().arms]
    network.end("c")
    look(group)
    for process in group.values():
        arms = process.split.experiment.report().arms
        assert sum(arm.requests for arm in arms) == before + passed
        assert [arm.failed for arm in arms] == failed
    for number in range(40):  # units of the one that is gone are counted again
        record = a_record(20_000 + number, group["a"].clock.now())
        group["a"].split.begin("near", b"late %d" % number, record)
        group["a"].split.end(finish(record))
    look(group)
    assert sum(arm.requests for arm in group["b"].split.experiment.report().arms) == before + passed + 40


def test_an_arm_that_fails_is_out_at_all_and_at_a_process_that_starts_later() -> None:
    network, group = processes("abc", None, guarded)
    number = 0
    while not group["b"].splits[-1].rolled_back:
        send(group, number := number + 1, "far")
        look(group)
        group["b"].guard()
        assert number < 400
    for run, process in group.items():
        (code, chat) = process.splits
        assert (code.rolled_back, chat.rolled_back) == (set(), {"far"})
        assert {chat.assign(unit.to_bytes(8)).arm for unit in range(50)} == {"near"}
        assert chat.experiment.report().arms[1].out is not None
        process.guard()
        assert process.rollbacks() == [("rollback of model chat", "far", None if run == "b" else "b")]
    late = Process("d", network, None, guarded)
    network.send_state("c", "d")
    assert [split.rolled_back for split in late.splits] == [set(), {"far"}]
    again = a_split(observe_s=1, guard=GUARD, limits={})
    SplitGuard([again], group["a"].plane.audit, late.clock, lambda: late.plane.control.policy_set)
    assert again.rolled_back == {"far"}, "by its own audit log"


def test_what_two_processes_find_at_once_is_rolled_back_once_at_each() -> None:
    network, group = processes("abc", None, guarded)
    for number in range(150):
        send(group, number, "far")
    with network.held():
        group["a"].guard()  # each has counted enough units by itself
        group["b"].guard()
    for run, process in group.items():
        assert process.splits[-1].rolled_back == {"far"}
        process.guard()
        found = [("rollback of model chat", "far", None if run == each else each) for each in "ab"]
        assert sorted(process.rollbacks(), key=str) == sorted(found, key=str)


def test_a_split_and_an_experiment_of_policies_count_the_same_requests_each_for_itself() -> None:
    _, group = processes("abc", SPEC, one_split)
    for number in range(60):
        for process in group.values():  # each has requests of these numbers
            unit = b"%d %s" % (number, process.run.encode())
            record = a_record(number, 0.0)
            process.experiment.begin_request("near", unit, record)
            process.split.begin("far", unit, record)
            record.ttft_ms = 100.0
            process.experiment.first_byte(record)
            process.split.first_byte(record)
            if number % 2:
                process.split.leave(record, 1.0)
            process.experiment.end_request(finish(record))
            process.split.end(record)
    look(group)
    for process in group.values():
        by_policy, by_model = of_policies(process).report(), of_split(process).report()
        assert [(arm.requests, arm.failed) for arm in by_policy.arms] == [(180, 0), (0, 0)]
        assert [(arm.requests, arm.failed) for arm in by_model.arms] == [(0, 0), (180, 90)]
    for counted in (of_policies, of_split):
        assert sum(counted(process).open_units for process in group.values()) == 180
