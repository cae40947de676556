"""Requests that another process answers count in the leader's trial as its own do."""

from __future__ import annotations

from itertools import count

from router.clock import ManualClock
from router.control.workers.experiment import ReportedRequests, SyncedExperiment, describe_end
from router.control.workers.messages import Message, RequestAnswered, RequestBegan, RequestEnded
from router.kvcache.events import TargetId
from router.scheduling.experiments.experiment import RunningExperiment
from tests.router.scheduling.experiments.traffic import Behaviour, a_record, an_experiment, drive, finish, traffic

ARMS = {"a": 50.0, "b": 50.0}


def begin(requests: ReportedRequests[int], follower: int, message: RequestBegan, experiment: RunningExperiment) -> None:
    experiment.begin_request(message.arm, message.unit, requests.begin(follower, message.number, message.arrived_s))


class Between:
    """What a follower tells reaches the leader's trial at once."""

    def __init__(self, trial: RunningExperiment) -> None:
        self.sent: list[Message] = []
        self.requests = ReportedRequests[int](ManualClock(50.0), count(-1, -1))
        self._trial = trial

    def report_load(self, target: TargetId) -> None: ...

    def flush(self) -> None: ...

    def send(self, message: Message) -> None:
        self.sent.append(message)
        match message:
            case RequestBegan():
                begin(self.requests, 1, message, self._trial)
            case RequestAnswered() | RequestEnded():
                self.requests.apply(1, message, self._trial)


def test_a_trial_comes_to_the_same_wherever_its_requests_were_answered() -> None:
    planted = {"a": Behaviour(hit=0.9), "b": Behaviour(slower=1.4, fails=0.1, hit=0.5)}
    spec = an_experiment(ARMS, limits={"error_rate_max": 0.9})
    here, there = RunningExperiment(spec), RunningExperiment(spec)
    between = Between(there)
    follower = SyncedExperiment(spec, between, version=3)
    findings = list(drive(here, traffic(ARMS, planted, 300, seed=5)))

    class Both(RunningExperiment):
        """The follower is told of requests; looks are the leader's."""

        begin_request, end_request = follower.begin_request, follower.end_request  # type: ignore[assignment]
        poll, open_units = there.poll, property(lambda self: there.open_units)  # type: ignore[assignment]

    found = list(drive(Both(spec), traffic(ARMS, planted, 300, seed=5)))
    assert found == findings
    assert there.report() == here.report()
    assert sum(arm.requests for arm in here.report().arms) > 500
    between.requests.drop(1, there)
    assert there.report() == here.report(), "nothing is under way any more"


def test_a_first_byte_is_known_while_the_answer_still_comes() -> None:
    """Else every long answer would look like a slow first byte: the limit here is 500 ms, the answer takes minutes."""
    trial = RunningExperiment(an_experiment(limits={"ttft_p90_max_ms": 500}))
    between = Between(trial)
    follower = SyncedExperiment(an_experiment(), between, version=1)
    for number in range(400):
        record = a_record(number, number / 10)
        follower.begin_request("b", number.to_bytes(8), record)
        record.ttft_ms = 100.0
        follower.first_byte(record)
    assert trial.poll(200.0) == []
    assert not any(arm.out for arm in trial.report().arms)


def test_what_a_dying_worker_had_under_way_is_not_held_against_the_arm() -> None:
    trial = RunningExperiment(an_experiment())
    between = Between(trial)
    follower = SyncedExperiment(an_experiment(), between, version=1)
    mine, others = a_record(1, 10.0), a_record(2, 10.0)
    follower.begin_request("a", b"mine", mine)
    begin(between.requests, 2, RequestBegan(1, 2, "a", b"others", 10.0), trial)
    between.requests.drop(1, trial)
    arm = trial.report().arms[0]
    assert (arm.requests, arm.failed) == (1, 0)
    between.requests.apply(2, describe_end(finish(others)), trial)
    assert trial.report().arms[0].requests == 2
    follower.end_request(finish(mine))  # too late to count again
    assert trial.report().arms[0].requests == 2
