"""An experiment of policies over several processes comes to what it would at one, and may be started again."""

from __future__ import annotations

from random import Random

import pytest

from router.control.peers.experiment_messages import CountsShared, UnitRequestBegan
from router.control.peers.policies import PolicyDecision
from router.scheduling.experiments.experiment import RunningExperiment
from tests.router.control.control_plane import experiment
from tests.router.control.peers.memory_network import MemoryNetwork
from tests.router.control.peers.partitioned import (
    SPEC,
    Process,
    estimates,
    figures,
    finish_all,
    look,
    of_policies,
    processes,
    replay,
)
from tests.router.scheduling.experiments.traffic import Behaviour, a_record, drive, finish, traffic

ARMS = {"near": 50.0, "far": 50.0}


def test_all_processes_report_what_one_with_all_the_traffic_would() -> None:
    planted = {"far": Behaviour(slower=1.3, hit=0.6)}
    alone = RunningExperiment(SPEC)
    list(drive(alone, traffic(ARMS, planted, 150, seed=3)))
    _, group = processes("abc")
    replay(group, traffic(ARMS, planted, 150, seed=3), Random(1))
    finish_all(group)
    expected = alone.report()
    assert sum(arm.requests for arm in expected.arms) > 250
    for process in group.values():
        assert figures(process.experiment.report()) == figures(expected)
        assert estimates(process.experiment.report()) == pytest.approx(estimates(expected))
    assert min(sum(process.experiment.units.values()) for process in group.values()) > 25  # each counts a part


def test_the_guard_sees_all_traffic_and_a_bad_arm_is_out_everywhere() -> None:
    spec = experiment(unit="session", observe_s=20, guard={"metric": "hit_share"})
    bad = {"far": Behaviour(hit=0.3)}
    _, group = processes("abc", spec)
    found = replay(group, traffic(ARMS, bad, 250, seed=4), Random(2))
    assert {finding.arm for _, finding in found} == {"far"}
    tripped_s, finding = found[0]
    units = [process.experiment.units["far"] for process in group.values()]
    assert finding.units > 1.5 * max(units), "no process has seen so many units of the arm by itself"
    _, single = processes("a", spec)
    ((alone_s, _),) = replay(single, traffic(ARMS, bad, 250, seed=4), Random(2))
    assert alone_s <= tripped_s < 2 * alone_s


def test_counts_of_a_process_that_is_gone_stay_and_reach_one_that_starts_later() -> None:
    events = traffic(ARMS, {}, 100, seed=5)
    network, group = processes("ab")
    replay(group, events, Random(3))
    finish_all(group)
    before = figures(group["a"].experiment.report())
    network.end("b")
    late = Process("d", network)
    group = {"a": group["a"], "d": late}
    look(group)
    network.send_state("a", "d")
    assert figures(group["a"].experiment.report()) == before
    assert figures(late.experiment.report()) == before


def test_what_processes_counted_while_they_could_not_hear_each_other_is_summed_afterwards() -> None:
    events = traffic(ARMS, {}, 100, seed=6)
    network, group = processes("ab")
    group["a"].peers.cut_off.add("b")
    look(group)
    units = {event.unit for event in events}
    for run, process in group.items():  # each unit is with one of them
        mine = [event for event in events if (event.unit[-1] % 2 == 0) == (run == "a")]
        replay({run: process}, mine, Random(1))
    finish_all(group)
    assert sum(arm.units_closed for arm in group["a"].experiment.report().arms) < len(units)
    group["a"].peers.cut_off.clear()
    network.send_state("a", "b")
    network.send_state("b", "a")
    for process in group.values():
        assert sum(arm.units_closed for arm in process.experiment.report().arms) == len(units)


def test_requests_that_are_units_of_their_own_stay_where_they_are() -> None:
    network, group = processes("ab", experiment())
    replay(group, traffic(ARMS, {}, 50, seed=7), Random(1))
    assert not network.messages(UnitRequestBegan)
    assert network.messages(CountsShared)


def test_open_requests_of_a_process_that_is_gone_are_not_held_against_the_arm() -> None:
    network, group = processes("ab")
    for number in range(40):
        group["b"].experiment.begin_request("near", number.to_bytes(8), a_record(number, 0.0))
    passed = network.messages(UnitRequestBegan, "b")
    assert 5 < len(passed) < 35
    a = group["a"]
    a.move_to(5.0)
    network.end("b")
    (near, _) = a.experiment.report().arms
    assert (near.requests, near.failed) == (len(passed), 0)
    assert near.spread is None, "no target is known"


def test_a_first_byte_is_known_while_the_answer_still_comes() -> None:
    """Else every long answer would look like a slow first byte: the limit here is 500 ms, the answers take minutes."""
    _, group = processes("ab", experiment(unit="session", limits={"ttft_p90_max_ms": 500}))
    for number in range(400):
        record = a_record(number, number / 10)
        for process in group.values():
            process.move_to(record.arrived_s)
        group["b"].experiment.begin_request("far", number.to_bytes(8), record)
        record.ttft_ms = 100.0
        group["b"].experiment.first_byte(record)
    for process in group.values():
        process.move_to(200.0)
    assert look(group, of_policies) == []
    counts = [process.experiment.counts().arms[1].limits["ttft_p90_max_ms"] for process in group.values()]
    assert (sum(each.requests for each in counts), sum(each.bad for each in counts)) == (400, 0)
    assert min(each.requests for each in counts) > 100


async def test_the_same_arms_ended_and_started_again_have_empty_books_everywhere() -> None:
    network = MemoryNetwork()
    a, b = Process("a", network), Process("b", network)
    group = {"a": a, "b": b}
    look(group)
    for process in (a, b):
        for number in range(20):
            record = a_record(number, 0.0)
            process.experiment.begin_request("near", number.to_bytes(4) + process.run.encode(), record)
            process.experiment.end_request(finish(record))
    look(group)
    assert a.experiment.report().arms[0].requests == 40
    text = SPEC.model_dump_json(exclude_defaults=True)
    network.mute.add("b")
    await a.plane.control.end_experiment("ann")
    await a.plane.control.start_experiment(text, "ann")
    look(group)
    assert (a.experiment.report().arms[0].requests, b.experiment.report().arms[0].requests) == (0, 40)
    network.mute.clear()
    b.policies.apply(network.messages(PolicyDecision)[-1], "a")  # of both decisions it gets the last one alone
    decision = b.policies._latest
    assert decision is not None
    assert b.policies._confirm(decision)
    look(group)
    look(group)
    assert (a.experiment.report().arms[0].requests, b.experiment.report().arms[0].requests) == (0, 0)
