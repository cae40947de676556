"""Two schedulers that synchronise: equal loads, nothing left at the end, and policies built from a message."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.config import schema
from router.config.reader import load_policies
from router.config.schema import Config, PolicyConfig
from router.config.sections.experiment import ExperimentConfig
from router.config.sections.listeners import AdmissionConfig
from router.control.workers.experiment import SyncedExperiment
from router.control.workers.follower import dump_follower_config
from router.control.workers.messages import (
    BlocksSent,
    BreakerMoved,
    CacheForgotten,
    DrainMessage,
    InstanceSuspected,
    Message,
    PolicyRule,
    ResponseStored,
    SessionAnswered,
    SessionMoved,
)
from router.control.workers.scheduler import NUMBERS_PER_WORKER, SyncedScheduler, build_from_rule, make_rule
from router.errors import ConfigError
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.prompt.prompt import Endpoint, Prompt, Text
from router.prompt.usage import Usage
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policies, build_policy
from router.scheduling.policy.record import AttemptEnd, Record, Stages
from router.scheduling.preload import book_preload, settle_preload
from router.scheduling.ticket import Ticket
from router.wiring import WorkerRole, build_scheduler
from scorers.registry import load_registry
from tests.fakes.caches import RING, Cache, prompt_of
from tests.paths import CONFIGS
from tests.suites.properties import examples

A = TargetId("a/0")
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


def test_a_sessions_target_is_sent_when_it_moves_and_with_replicas_with_every_request() -> None:
    """Two replicas whose moves crossed, or that could not hear each other, agree again at its next request."""
    for every, sent in ((False, ["a/0"]), (True, ["a/0", "a/0"])):
        worker = Worker(0, "a")
        worker.core.sends_every_session = every
        for _ in range(2):
            worker.core.settle(worker.admit("chat"))
        assert [message.target for message in worker.sent.messages if isinstance(message, SessionMoved)] == sent


@examples(50)
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
            assert min(min(msgspec.structs.astuple(share)) for share in own) >= 0

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
    other.core.apply_sessions([went])
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


def fail(worker: Worker, times: int = 1, end: AttemptEnd = "died") -> None:
    """Let requests of a worker end like this at `a`, the only target it has."""
    for _ in range(times):
        ticket = worker.admit()
        ticket.end, ticket.status = end, 200 if end == "ok" else None
        worker.core.settle(ticket)


def test_a_breaker_that_opened_is_open_for_all_and_a_good_answer_anywhere_closes_it() -> None:
    one, other = Worker(0, "a"), Worker(1, "a")
    theirs = other.core.fleet.target(TargetId("a/0"))
    assert theirs is not None
    fail(one, 2)
    assert not any(isinstance(message, BreakerMoved) for message in one.sent.messages)
    fail(one)
    (moved,) = [message for message in one.sent.messages if isinstance(message, BreakerMoved)]
    assert moved == BreakerMoved("a/0", True)
    other.core.apply_breaker(moved)
    assert (theirs.breaker.state(100.0), theirs.breaker.allows(100.0)) == ("open", False)
    assert other.core.open_breakers() == [moved]
    assert theirs.breaker.times_opened == 0  # counted where it happened
    fail(other, end="ok")
    (closed,) = [message for message in other.sent.messages if isinstance(message, BreakerMoved)]
    one.core.apply_breaker(closed)
    assert (one.core.open_breakers(), other.core.open_breakers()) == ([], [])


def test_an_engine_that_cannot_be_reached_from_here_is_only_suspected_elsewhere() -> None:
    one = Worker(0, "a")
    fail(one, 5, "connect")
    mine = one.core.fleet.target(TargetId("a/0"))
    assert mine is not None
    assert mine.breaker.is_open
    assert [message for message in one.sent.messages if not isinstance(message, PolicyRule)] == [InstanceSuspected("a")]
    assert one.core.open_breakers() == []


def test_a_response_is_found_where_it_was_only_told_of() -> None:
    one, other = Worker(0), Worker(1)
    one.sent.messages.clear()
    one.core.remember_response("resp_1", TargetId("b/0"), "acme")
    (made,) = one.sent.messages
    assert isinstance(made, ResponseStored)
    other.core.apply_response(made)
    assert other.core.response_target("resp_1") == "b/0"
    assert other.core.responses() == [("resp_1", "b/0", "acme")]
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


def test_a_cache_to_forget_is_told_once_and_forgotten_by_all() -> None:
    one, other = Worker(0), Worker(1)
    cache, ids, (key,) = Cache(), list(range(4)), prompt_of(list(range(4))).keys[4]
    other.core.add_instance("a", [CARD], [EventEndpoint(0, "tcp://a:5557", None, "")])
    other.core.indexer.on_batch(TargetId("a/0"), cache.batch())
    other.core.indexer.on_batch(TargetId("a/0"), cache.batch(cache.stored(ids)))
    assert other.core.indexer.holders(key)[0] == ["a/0"]
    one.sent.messages.clear()
    assert one.core.forget_cache("a")
    assert not one.core.forget_cache("zz")
    assert one.sent.messages == [CacheForgotten("a")]
    other.sent.messages.clear()
    other.core.apply_forgotten("a")
    assert other.core.indexer.holders(key)[0] == []
    assert other.sent.messages == []


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


def test_only_the_leader_loads_prefixes_ahead() -> None:
    config = Config.model_validate({"preload": {"join": True}})
    follower = Config.model_validate_json(dump_follower_config(config, 1, REGIME))
    assert not follower.preload.enabled
    assert follower.preload.prompt_bytes == 0  # and keeps no token ids
    assert config.preload.prompt_bytes > 0


def test_a_preloaded_prefix_is_booked_by_all_and_its_first_request_counts_once() -> None:
    leader, follower = Worker(0), Worker(1)
    leader.sent.messages.clear()
    target, known = leader.core.fleet.target(A), prompt_of(range(16))
    assert target is not None
    booked = book_preload(leader.core, target, known, "join", None, 100.0)
    share = leader.core.own_share(A)
    assert (leader.sent.targets, share.prefilling, share.prefill_tokens) == ({A}, 1, 16)
    leader.sent.targets.clear()
    keys = tuple(known.keys[4][n - 1] for n in (1, 2, 4))
    settle_preload(leader.core, booked, Usage(16, 0, 1), keys, 101.0, 101.0)
    assert (leader.sent.targets, leader.core.own_share(A)) == ({A}, NO_SHARE)
    for message in leader.sent.messages:
        follower.core.apply_preload(message)  # type: ignore[arg-type]
    follower.sent.messages.clear()
    assert follower.core.preloads.on_answer(A, keys, 16) == 16
    for message in follower.sent.messages:
        leader.core.apply_preload(message)  # type: ignore[arg-type]
    assert not leader.core.preloads
    assert leader.core.preloads.prefixes[0].hit_tokens == 16
    assert follower.core.preloads.on_answer(A, keys, 16) is None


def test_blocks_on_their_way_are_expected_by_the_others_and_those_of_a_target_without_events_are_kept() -> None:
    """So that a burst on a new prefix does not scatter over the fleet because it came to several routers."""
    here, there = Worker(0, "a"), Worker(1, "a")
    target = TargetId("a/0")
    for worker in (here, there):
        found = worker.core.fleet.target(target)
        assert found is not None
        found.set_block_tokens(4)
    ticket = here.admit()
    ticket.status = 200
    here.core.on_first_byte(ticket)
    sent = [message for message in here.sent.messages if isinstance(message, BlocksSent)]
    assert [(message.target, message.computed, len(message.keys)) for message in sent] == [
        ("a/0", False, 40),
        ("a/0", True, 40),
    ]
    for message, expected in zip(sent, ((0, 16), (16, 16)), strict=True):
        there.core.apply_sent(message)
        (estimate,) = there.core.indexer.estimate_overlaps(
            prompt_of(list(range(20))), {target: 4}, frozenset()
        ).values()
        assert estimate.overlap is not None
        assert (estimate.overlap.gpu_tokens, estimate.overlap.expected_tokens) == expected
    assert not any(isinstance(message, BlocksSent) for message in there.sent.messages)  # it is not passed on
