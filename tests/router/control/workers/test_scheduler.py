"""Two schedulers that synchronise: equal loads, nothing left at the end, and policies built from a message."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.clock import ManualClock
from router.config import schema
from router.config.reader import load_policies
from router.config.schema import Config, PolicyConfig
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.listeners import AdmissionConfig
from router.control.workers.experiment import SyncedExperiment
from router.control.workers.messages import (
    DrainMessage,
    Message,
    PolicyRule,
    ResponseStored,
    SessionAnswered,
    SessionMoved,
)
from router.control.workers.scheduler import NUMBERS_PER_WORKER, SyncedScheduler, build_from_rule, make_rule
from router.errors import ConfigError
from router.fleet.engine_facts import ModelCard
from router.fleet.load import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.prompt.prompt import Endpoint, Prompt, Text
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policies, build_policy
from router.scheduling.policy.record import Record, Stages
from router.scheduling.ticket import Ticket
from router.wiring import WorkerRole, build_scheduler
from scorers.registry import load_registry
from tests.fakes.caches import RING, prompt_of
from tests.paths import CONFIGS

CARD = ModelCard("m", "/models/m", None, 8192)
LEAST = build_policy("least", schema.PolicyConfig.model_validate({"scorers": [{"name": "least_requests"}]}))
STICKY = build_policy("sticky", schema.PolicyConfig.model_validate({"scorers": [{"name": "session_affinity"}]}))
REGIME = PolicySet({"least": LEAST, "sticky": STICKY}, "least")
EXPERIMENT = ExperimentConfig.model_validate({"arms": {"least": 50, "sticky": 50}})
ROOT_POLICIES = load_policies(Config(policies_dir=str(CONFIGS / "policies")))
SENT_EXPERIMENT = ExperimentConfig.model_validate(
    {"arms": {"warm": 50, "round_robin": 30, "random": 20}, "shadows": ["lmetric"], "guard": {"worse_by": "20%"}}
)


class RecordingBroadcast:
    """What a worker tells, kept for whoever listens."""

    def __init__(self) -> None:
        self.targets: set[TargetId] = set()
        self.messages: list[Message] = []

    def report_load(self, target: TargetId) -> None:
        self.targets.add(target)

    def send(self, message: Message) -> None:
        self.messages.append(message)

    def flush(self) -> None: ...


class Worker:
    def __init__(self, number: int, instances: str = "ab") -> None:
        self.sent = RecordingBroadcast()
        role = WorkerRole(number, 1, self.sent)  # type: ignore[arg-type]
        core = build_scheduler(schema.Config(seed=1), REGIME, RING, ManualClock(100.0), secret=1, role=role)
        self.core = cast(SyncedScheduler, core)
        for name in instances:
            self.join(name)

    def join(self, name: str) -> None:
        self.core.fleet.join(schema.InstanceConfig(name=name, url=f"http://{name}:8000"))
        self.core.add_instance(name, [CARD], [])

    def admit(self, session: str | None = None) -> Ticket:
        number = self.core.selector.next_number()
        record = Record(f"r-{number}", number, 100.0, 0.0, "/v1/completions", "m", True, "local", 20, Stages())
        prompt = Prompt(Endpoint.COMPLETIONS, "/v1/completions", "m", b"", Text("", True), True, session=session)
        ticket = self.core.admit(record, prompt, self.core.fleet.resolve("m"), prompt_of(list(range(20))))
        assert ticket is not None
        return ticket

    def requests(self, target: str) -> int:
        found = self.core.fleet.target(TargetId(target))
        assert found is not None
        return found.load_book.requests

    def hears_loads_of(self, other: Worker) -> None:
        for target in other.sent.targets:
            self.core.apply_load(target, other.core.own_share(target))
        other.sent.targets.clear()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from(["admit", "byte", "settle", "tell"])), max_size=40))
def test_once_told_everybodys_books_are_the_sum_and_at_the_end_nothing(steps: list[tuple[int, str]]) -> None:
    workers = Worker(0), Worker(1)
    tickets: tuple[list[Ticket], list[Ticket]] = [], []

    def tell() -> None:
        workers[0].hears_loads_of(workers[1])
        workers[1].hears_loads_of(workers[0])
        for target in ("a/0", "b/0"):
            own = [worker.core.own_share(TargetId(target)) for worker in workers]
            assert workers[0].requests(target) == workers[1].requests(target) == own[0].requests + own[1].requests
            books = [worker.core.fleet.target(TargetId(target)).load_book for worker in workers]  # type: ignore[union-attr]
            assert books[0].prefill_attended == books[1].prefill_attended
            assert books[0].context_tokens == books[1].context_tokens
            assert min(min(share) for share in own) >= 0

    for who, what in steps:
        worker, open_ = workers[who], tickets[who]
        if what == "admit":
            open_.append(worker.admit())
        elif what == "byte" and open_:
            worker.core.on_first_byte(open_[-1])
        elif what == "settle" and open_:
            worker.core.settle(open_.pop(0))
        elif what == "tell":
            tell()
    for worker, open_ in zip(workers, tickets, strict=True):
        for ticket in open_:
            worker.core.settle(ticket)
    tell()
    assert [worker.requests(target) for worker in workers for target in ("a/0", "b/0")] == [0] * 4


def test_the_next_choice_sees_what_others_booked() -> None:
    one, other = Worker(0), Worker(1)
    first = one.admit()
    other.hears_loads_of(one)
    assert other.admit().target.id != first.target.id


def test_what_was_told_of_a_target_before_it_joined_counts_when_it_does() -> None:
    worker = Worker(1, "a")
    worker.core.apply_load(TargetId("b/0"), WorkerShare(requests=3))
    worker.join("b")
    assert worker.requests("b/0") == 3
    assert worker.core.own_share(TargetId("b/0")) == NO_SHARE
    worker.core.remove_instance("b")
    worker.core.apply_load(TargetId("b/0"), NO_SHARE)
    worker.join("b")
    assert worker.requests("b/0") == 0


def test_a_session_is_told_when_it_moves_and_only_then() -> None:
    one, other = Worker(0), Worker(1)
    one.core.swap(PolicySet(REGIME.policies, "sticky"))
    one.sent.messages.clear()
    target = one.admit("agent").target.id
    one.admit("agent")
    one.admit(None)
    (went,) = one.sent.messages
    assert isinstance(went, SessionMoved)
    assert (went.prefill, went.model, went.target) == (False, "m", target)
    other.core.apply_session(went)
    ticket = other.admit("agent")
    assert ticket.attempt.decision.view.last_target == target


def test_the_progress_of_a_session_is_told_to_other_workers_where_a_policy_reads_it() -> None:
    one, other = Worker(0), Worker(1)
    for worker in (one, other):
        worker.core.swap(PolicySet(REGIME.policies, "sticky"))
    for tool_call in (False, True):
        ticket = one.admit("agent")
        ticket.end, ticket.record.tool_call = "ok", tool_call
        one.core.settle(ticket)
    told = [message for message in one.sent.messages if isinstance(message, SessionAnswered)]
    assert [(said.turn, said.answered_s, said.tool_call) for said in told] == [(1, 100.0, False), (2, 100.0, True)]
    for message in told:
        other.core.apply_progress(message)
    view = other.admit("agent").attempt.decision.view
    assert (view.session_turn, view.idle_s, view.after_tool_call) == (2, 0.0, True)


def test_nothing_is_told_of_sessions_whose_progress_nobody_reads() -> None:
    one = Worker(0)
    ticket = one.admit("agent")
    ticket.end = "ok"
    one.core.settle(ticket)
    assert not any(isinstance(message, SessionAnswered) for message in one.sent.messages)


def test_a_response_is_found_where_it_was_only_told_of() -> None:
    one, other = Worker(0), Worker(1)
    one.sent.messages.clear()
    one.core.remember_response("resp_1", TargetId("b/0"))
    (made,) = one.sent.messages
    assert isinstance(made, ResponseStored)
    other.core.apply_response(made)
    assert other.core.response_target("resp_1") == "b/0"
    assert other.core.responses() == [("resp_1", "b/0")]
    assert other.sent.messages == []


def test_a_drain_is_told_and_holds_for_who_joins_later() -> None:
    one, other = Worker(0), Worker(1, "")
    one.sent.messages.clear()
    assert one.core.drain("a", True)
    assert not one.core.drain("zz", True)
    assert one.sent.messages == [DrainMessage("a", True)]
    other.core.apply_drain("a", True)
    other.join("a")
    assert other.core.fleet.candidates("m", (), 100.0) == ()
    other.core.apply_drain("a", False)
    assert len(other.core.fleet.candidates("m", (), 100.0)) == 1


def test_the_leader_tells_what_decides_and_followers_do_not() -> None:
    leader, follower = Worker(0), Worker(1)
    for worker in (leader, follower):
        worker.sent.messages.clear()
        worker.core.swap(PolicySet(REGIME.policies, "sticky"))
    (rule,) = leader.sent.messages
    assert isinstance(rule, PolicyRule)
    assert (rule.version, rule.active) == (leader.core.version, "sticky")
    assert follower.sent.messages == []


def test_a_followers_trial_only_passes_on_and_the_leaders_counts() -> None:
    leader, follower = Worker(0), Worker(1)
    for worker in (leader, follower):
        worker.core.version = 7
        worker.core.swap(PolicySet(REGIME.policies, "least", EXPERIMENT))
    assert type(leader.core.experiment) is not SyncedExperiment
    assert leader.core.experiment_since == leader.core.version == 8
    trial = follower.core.experiment
    assert isinstance(trial, SyncedExperiment)
    assert trial.version == 7
    follower.core.version = 9
    follower.core.swap(PolicySet(REGIME.policies, "sticky", EXPERIMENT))  # the experiment goes on
    assert follower.core.experiment is trial
    assert trial.version == 9


@pytest.mark.parametrize("worker", [0, 1, 2])
def test_chance_falls_differently_in_every_worker(worker: int) -> None:
    assert Worker(worker).core.selector.next_number() == worker * NUMBERS_PER_WORKER


def regime() -> PolicySet:
    return PolicySet(build_policies(ROOT_POLICIES), "warm", SENT_EXPERIMENT, frozenset({"random"}))


def test_every_policy_that_comes_along_is_the_same_on_the_other_side() -> None:
    told = regime()
    heard = build_from_rule(
        make_rule(told, 3), PolicySet(build_policies({"x": ROOT_POLICIES["random"]}), "x"), load_registry()
    )
    assert len(heard.policies) == len(ROOT_POLICIES) > 10
    assert {name: policy.digest for name, policy in heard.policies.items()} == {
        name: policy.digest for name, policy in told.policies.items()
    }
    assert (heard.active, heard.experiment, heard.rolled_back) == ("warm", SENT_EXPERIMENT, {"random"})
    assert heard.digests == told.digests


def test_policies_that_did_not_change_stay_with_all_that_they_learned() -> None:
    here = regime()
    changed = PolicyConfig.model_validate({"scorers": [{"name": "queue_depth"}]})
    then = PolicySet(here.policies | build_policies({"round_robin": changed}), "warm", SENT_EXPERIMENT)
    heard = build_from_rule(make_rule(then, 4), here, load_registry())
    assert heard.policies["warm"] is here.policies["warm"]
    assert heard.policies["round_robin"] is not here.policies["round_robin"]
    assert heard.policies["round_robin"].spec == changed


def test_policies_that_are_gone_are_gone() -> None:
    here = regime()
    then = PolicySet({"warm": here.policies["warm"]}, "warm")
    assert list(build_from_rule(make_rule(then, 5), here, load_registry()).policies) == ["warm"]


def test_what_admits_requests_is_the_same_in_every_worker() -> None:
    here = regime()
    admission = AdmissionConfig.model_validate({"enabled": True, "rule": {"name": "concurrency", "per_target": 3}})
    heard = build_from_rule(make_rule(replace(here, admission=admission), 5), here, load_registry())
    assert heard.admission == admission


def test_what_cannot_be_built_is_said() -> None:
    outside = PolicyRule(1, {"warm": '{"scorers": [{"name": "not_installed_here"}]}'}, "warm", None, [], "{}")
    with pytest.raises(ConfigError, match="not_installed_here"):
        build_from_rule(outside, regime(), load_registry())
