"""An experiment over several routers comes to what it would at one: each unit counts once, wherever its requests go."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from router.clock import ManualClock
from router.config.sections.experiment import ExperimentConfig
from router.control.replicas.experiments import SharedExperiments
from router.control.replicas.frames import decode_messages, decode_replica_frame, encode_replica_frame
from router.control.replicas.policies import SharedPolicies
from router.control.replicas.policy_messages import CountsShared, UnitRequestBegan
from router.control.workers.messages import Message
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.results import ExperimentReport, Finding
from tests.router.control.control_plane import ControlPlane, experiment
from tests.router.scheduling.experiments.traffic import ATTEMPTS, Behaviour, Event, a_record, drive, finish, traffic

ARMS = {"near": 50.0, "far": 50.0}
SPEC = experiment(unit="session", observe_s=20, limits={"error_rate_max": 0.9})
END_S = 2000.0  # after all traffic


class Counting:
    """A router that counts; what it sends arrives at once, at those that are not cut off from it."""

    def __init__(self, run: str, group: dict[str, Counting], spec: ExperimentConfig = SPEC) -> None:
        self.run = run
        self.group = group
        self.cut_off: set[str] = set()
        self.sent: list[Message] = []
        self.clock = ManualClock(0.0, wall=5000.0)
        self.plane = ControlPlane(running=spec, clock=self.clock)
        policies = SharedPolicies(run, self.plane.control, lambda message: None)
        self.shared = SharedExperiments(run, self.plane.core, policies, self, self.clock)
        group[run] = self

    @property
    def experiment(self) -> RunningExperiment:
        found = self.plane.core.experiment
        assert found is not None
        return found

    def heard_runs(self) -> list[str]:
        return [run for run, other in self.group.items() if run != self.run and self.reaches(other)]

    def reaches(self, other: Counting) -> bool:
        return other.run not in self.cut_off and self.run not in other.cut_off

    def share(self, message: Message) -> None:
        for run in self.heard_runs():
            self.send_to(run, message)

    def send_to(self, run: str, message: Message) -> None:
        self.sent.append(message)
        if run in self.group and self.reaches(self.group[run]):
            frame = decode_replica_frame(encode_replica_frame("direct", self.run, 0, 0.0, [message]))
            assert frame is not None
            ((found,), skipped) = decode_messages(frame)
            assert skipped == 0
            self.group[run].shared.apply(found, self.run)

    def move_to(self, now_s: float) -> None:
        self.clock.advance(max(0.0, now_s - self.clock.now()))


def routers(*runs: str, spec: ExperimentConfig = SPEC) -> dict[str, Counting]:
    group: dict[str, Counting] = {}
    for run in runs:
        Counting(run, group, spec)
    look(group)
    return group


def look(group: dict[str, Counting]) -> list[Finding]:
    """All routers find out who is there, tell their counts, and look for what must be done."""
    for router in group.values():
        router.shared.poll()
    for router in group.values():
        router.shared.share_counts()
    return [finding for router in group.values() for finding in router.experiment.poll(router.clock.now())]


def replay(group: dict[str, Counting], events: Sequence[Event], dice: Random) -> list[tuple[float, Finding]]:
    """Each request is answered by any of the routers. Returns what was found, and when."""
    at: dict[int, Counting] = {}
    found: list[tuple[float, Finding]] = []
    for n, (now_s, arm, unit, record, ends, ttft_ms, status, cached) in enumerate(events):
        for router in group.values():
            router.move_to(now_s)
        if not ends:
            at[record.number] = dice.choice(list(group.values()))
            at[record.number].experiment.begin_request(arm, unit, record)
        else:
            record.attempts = ATTEMPTS[record.number % 2]
            record.ttft_ms, record.duration_ms, record.status = ttft_ms, ttft_ms + 500.0, status
            record.prompt_tokens, record.cached_tokens = 1000, cached
            at[record.number].experiment.first_byte(record)
            at[record.number].experiment.end_request(record)
        if n % 50 == 0:
            found += [(now_s, finding) for finding in look(group)]
    return found


def finish_all(group: dict[str, Counting]) -> list[Finding]:
    found: list[Finding] = []
    for after_s in (0.0, 100.0, 200.0):
        for router in group.values():
            router.move_to(END_S + after_s)
        found += look(group)
    look(group)
    return found


def figures(report: ExperimentReport) -> list[tuple[int, int, int, int]]:
    return [(arm.units_open, arm.units_closed, arm.requests, arm.failed) for arm in report.arms]


def estimates(report: ExperimentReport) -> list[float | None]:
    return [each for arm in report.arms for one in arm.standings for each in (one.estimate, one.low, one.high)]


def test_all_routers_report_what_one_router_with_all_the_traffic_would() -> None:
    planted = {"far": Behaviour(slower=1.3, hit=0.6)}
    alone = RunningExperiment(SPEC)
    list(drive(alone, traffic(ARMS, planted, 150, seed=3)))
    group = routers("a", "b", "c")
    replay(group, traffic(ARMS, planted, 150, seed=3), Random(1))
    finish_all(group)
    expected = alone.report()
    assert sum(arm.requests for arm in expected.arms) > 250
    for router in group.values():
        assert figures(router.experiment.report()) == figures(expected)
        assert estimates(router.experiment.report()) == pytest.approx(estimates(expected))
    assert min(sum(router.experiment.units.values()) for router in group.values()) > 25  # each counts a part


def test_the_guard_sees_all_traffic_and_a_bad_arm_is_out_everywhere() -> None:
    spec = experiment(unit="session", observe_s=20, guard={"metric": "hit_share"})
    bad = {"far": Behaviour(hit=0.3)}
    group = routers("a", "b", "c", spec=spec)
    found = replay(group, traffic(ARMS, bad, 250, seed=4), Random(2))
    assert {finding.arm for _, finding in found} == {"far"}
    tripped_s, finding = found[0]
    units = [router.experiment.units["far"] for router in group.values()]
    assert finding.units > 1.5 * max(units), "no router has seen so many units of the arm by itself"
    single = routers("a", spec=spec)
    ((alone_s, _),) = replay(single, traffic(ARMS, bad, 250, seed=4), Random(2))
    assert alone_s <= tripped_s < 2 * alone_s


def test_counts_of_a_router_that_is_gone_stay_and_reach_one_that_starts_later() -> None:
    events = traffic(ARMS, {}, 100, seed=5)
    group = routers("a", "b")
    replay(group, events, Random(3))
    finish_all(group)
    before = figures(group["a"].experiment.report())
    del group["b"]
    look(group)
    late = Counting("d", group)
    look(group)
    for message in group["a"].shared.state():
        late.shared.apply(message, "a")
    assert figures(group["a"].experiment.report()) == before
    assert figures(late.experiment.report()) == before


def test_what_routers_counted_while_they_could_not_hear_each_other_is_summed_afterwards() -> None:
    events = traffic(ARMS, {}, 100, seed=6)
    group = routers("a", "b")
    group["a"].cut_off.add("b")
    look(group)
    units = {event.unit for event in events}
    for run, router in group.items():  # each unit is with one of them
        mine = [event for event in events if (event.unit[-1] % 2 == 0) == (run == "a")]
        replay({run: router}, mine, Random(1))
    finish_all(group)
    assert sum(arm.units_closed for arm in group["a"].experiment.report().arms) < len(units)
    group["a"].cut_off.clear()
    for sender, receiver in (("a", "b"), ("b", "a")):
        for message in group[sender].shared.state():
            group[receiver].shared.apply(message, sender)
    for router in group.values():
        assert sum(arm.units_closed for arm in router.experiment.report().arms) == len(units)


def test_requests_that_are_units_of_their_own_stay_where_they_are() -> None:
    group = routers("a", "b", spec=experiment())
    replay(group, traffic(ARMS, {}, 50, seed=7), Random(1))
    sent = [message for router in group.values() for message in router.sent]
    assert not any(isinstance(message, UnitRequestBegan) for message in sent)
    assert any(isinstance(message, CountsShared) for message in sent)


def test_open_requests_of_a_router_that_is_gone_are_not_held_against_the_arm() -> None:
    group = routers("a", "b")
    for number in range(40):
        group["b"].experiment.begin_request("near", number.to_bytes(8), a_record(number, 0.0))
    passed = [message for message in group["b"].sent if isinstance(message, UnitRequestBegan)]
    assert 5 < len(passed) < 35
    a = group["a"]
    del group["b"]
    a.move_to(5.0)
    look(group)
    (near, _) = a.experiment.report().arms
    assert (near.requests, near.failed) == (len(passed), 0)


async def test_the_same_arms_ended_and_started_again_have_empty_books_everywhere() -> None:
    group: dict[str, Counting] = {}
    a, b = Counting("a", group), Counting("b", group)
    look(group)
    for router in (a, b):
        for number in range(20):
            record = a_record(number, 0.0)
            router.experiment.begin_request("near", number.to_bytes(4) + router.run.encode(), record)
            router.experiment.end_request(finish(record))
    look(group)
    assert a.experiment.report().arms[0].requests == 40
    text = SPEC.model_dump_json(exclude_defaults=True)
    told: list[Message] = []
    a.shared._policies._send = told.append
    await a.plane.control.end_experiment("ann")
    await a.plane.control.start_experiment(text, "ann")
    look(group)
    assert (a.experiment.report().arms[0].requests, b.experiment.report().arms[0].requests) == (0, 40)
    b.shared._policies.apply(told[-2], "a")  # it heard of the last decision alone: the same arms are in force here
    decision = b.shared._policies._latest
    assert decision is not None
    assert b.shared._policies._confirm(decision)
    look(group)
    look(group)
    assert (a.experiment.report().arms[0].requests, b.experiment.report().arms[0].requests) == (0, 0)
