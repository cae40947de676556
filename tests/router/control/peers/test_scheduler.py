"""Schedulers of several processes: equal loads, nothing left at the end, and what one finds out all know."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.config import schema
from router.control.core import build_scheduler
from router.control.peers.exchange import PeerExchange
from router.control.peers.history import _list_messages
from router.control.peers.loads import SharedLoads
from router.control.peers.messages import (
    BlocksSent,
    BreakerMoved,
    CacheForgotten,
    DrainMessage,
    InstanceSuspected,
    LoadMessage,
    PredictionChecked,
    ResponseStored,
    SessionAnswered,
    SessionMoved,
)
from router.control.peers.scheduler import CROSSING_S, NUMBERS_PER_WORKER, SUSPECT_AGAIN_S, PeerScheduler
from router.fleet.engine_facts import EventEndpoint, ModelCard
from router.fleet.instance import Target
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.prompt.prompt import Endpoint, Prompt, Text
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.scheduling.policy.record import AttemptEnd, Record, Stages
from router.scheduling.scheduling_request import SchedulingRequest
from router.scheduling.ticket import Ticket
from tests.fakes.caches import RING, Cache, prompt_of
from tests.router.control.peers.memory_network import MemoryNetwork
from tests.suites.properties import examples

A, B = TargetId("a/0"), TargetId("b/0")
BLOCK = prompt_of(list(range(4)))
CARD = ModelCard("m", "/models/m", None, 8192)
LEAST = build_policy("least", schema.PolicyConfig.model_validate({"scorers": [{"name": "least_requests"}]}))
STICKY = build_policy("sticky", schema.PolicyConfig.model_validate({"scorers": [{"name": "session_affinity"}]}))
POLICIES = PolicySet({"least": LEAST, "sticky": STICKY}, "least")


class Process:
    """A process with a scheduler, and what it is told of the load of others."""

    def __init__(self, run: str, network: MemoryNetwork, instances: str = "ab", number: int = 0) -> None:
        self.run = run
        self.clock = ManualClock(100.0)
        self.peers = network.join(run)
        peers = cast(PeerExchange, self.peers)
        settings = schema.Config(seed=1), POLICIES, RING, self.clock
        self.core = cast(PeerScheduler, build_scheduler(*settings, secret=1, peers=peers, number=number))
        self.peers.parts.append(self.core)
        self.loads = SharedLoads(self.core)
        self.suspected: list[str] = []
        self.core.suspect = self.suspected.append
        for name in instances:
            self.join(name)

    def join(self, name: str) -> None:
        self.core.fleet.join(schema.InstanceConfig(name=name, url=f"http://{name}:8000"))
        self.core.add_instance(name, [CARD], [])

    def admit(self, session: str | None = None) -> Ticket:
        number = self.core.selector.next_number()
        record = Record(f"r-{number}", number, 100.0, 0.0, "/v1/completions", "m", True, "local", 20, Stages())
        prompt = Prompt(Endpoint.COMPLETIONS, "/v1/completions", "m", b"", Text("", True), True, session=session)
        known = prompt_of(list(range(20)))
        ticket = self.core.admit(SchedulingRequest(record, prompt, self.core.fleet.resolve("m"), known))
        assert ticket is not None
        return ticket

    def fail(self, times: int = 1, end: AttemptEnd = "died", sender: str = "local") -> None:
        """Let requests of a client end like this at `a`, the only target there is."""
        for _ in range(times):
            ticket = self.admit()
            ticket.record.sender = sender
            ticket.end, ticket.status = end, 200 if end == "ok" else None
            self.core.settle(ticket)

    def target(self, target: TargetId = A) -> Target:
        found = self.core.fleet.target(target)
        assert found is not None
        return found

    def requests(self, target: TargetId) -> int:
        return self.target(target).load_book.requests


class Group:
    """Processes a, b, ... in front of the engines a and b."""

    def __init__(self, count: int, instances: str = "ab") -> None:
        self.network = MemoryNetwork()
        self.all = [Process(run, self.network, instances, n) for n, run in enumerate("abc"[:count])]

    def share_loads(self) -> None:
        """Let all know what the others have booked."""
        for sender in self.all:
            for other in self.all:
                if other is not sender:
                    loads = [LoadMessage(target, sender.core.own_share(target)) for target in sender.peers.booked]
                    other.loads.put(sender.run, loads)
            sender.peers.booked.clear()
        for process in self.all:
            process.loads.apply()


# load


@examples(50)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["admit", "byte", "settle", "share"])), max_size=40))
def test_once_shared_all_books_are_the_sum_and_at_the_end_nothing(steps: list[tuple[int, str]]) -> None:
    group = Group(3)
    tickets: tuple[list[Ticket], ...] = [], [], []

    def share() -> None:
        group.share_loads()
        for target in (A, B):
            own = [process.core.own_share(target) for process in group.all]
            books = [process.target(target).load_book for process in group.all]
            assert {book.requests for book in books} == {sum(share.requests for share in own)}
            assert len({book.prefill_attended for book in books}) == 1
            assert len({book.context_tokens for book in books}) == 1
            assert min(min(msgspec.structs.astuple(share)) for share in own) >= 0

    for who, what in steps:
        process, open_ = group.all[who], tickets[who]
        if what == "admit":
            open_.append(process.admit())
        elif what == "byte" and open_:
            process.core.on_first_byte(open_[-1])
        elif what == "settle" and open_:
            process.core.settle(open_.pop(0))
        elif what == "share":
            share()
    for process, open_ in zip(group.all, tickets, strict=True):
        for ticket in open_:
            process.core.settle(ticket)
    share()
    assert [process.requests(target) for process in group.all for target in (A, B)] == [0] * 6
    assert [process.loads.own() for process in group.all] == [{}] * 3


def test_the_next_choice_sees_what_others_booked() -> None:
    group = Group(2)
    first = group.all[0].admit()
    group.share_loads()
    assert group.all[1].admit().target.id != first.target.id


def test_the_load_of_a_target_that_was_reported_before_it_joined_counts_when_it_does() -> None:
    one = Group(1, "a").all[0]
    one.core.apply_load(B, WorkerShare(requests=3))
    one.join("b")
    assert one.requests(B) == 3
    assert one.core.own_share(B) == NO_SHARE
    one.core.remove_instance("b")
    one.core.apply_load(B, NO_SHARE)
    one.join("b")
    assert one.requests(B) == 0


def test_all_bookings_of_a_process_are_replaced_in_one_step() -> None:
    one = Group(1).all[0]
    one.loads.put("x", [LoadMessage(A, WorkerShare(requests=3)), LoadMessage(B, WorkerShare(requests=1))])
    one.loads.put("y", [LoadMessage(A, WorkerShare(requests=5))])
    one.loads.apply()
    one.loads.replace("x", {B: WorkerShare(requests=2)})
    assert (one.requests(A), one.requests(B)) == (8, 1), "until it is applied"
    one.loads.apply()
    assert (one.requests(A), one.requests(B)) == (5, 2)
    assert one.loads.total(A, excluding={"y"}) == NO_SHARE
    one.loads.replace("y", {})
    one.loads.apply()
    assert one.requests(A) == 0


@pytest.mark.parametrize("number", [0, 1, 2])
def test_chance_falls_differently_at_every_worker(number: int) -> None:
    assert Group(3).all[number].core.selector.next_number() == number * NUMBERS_PER_WORKER


# sessions and responses


def test_a_sessions_target_is_sent_with_every_request_and_is_the_same_for_all() -> None:
    group = Group(2)
    one, other = group.all
    for process in group.all:
        process.core.swap(PolicySet(POLICIES.policies, "sticky"))
    target = one.admit("agent").target.id
    one.admit("agent")
    one.admit(None)
    moves = group.network.messages(SessionMoved)
    assert [(move.prefill, move.model, move.target) for move in moves] == [(False, "m", target)] * 2
    assert other.admit("agent").attempt.decision.view.last_target == target


@pytest.mark.parametrize("later", [0, 1])
def test_of_moves_of_a_session_that_crossed_the_later_one_counts_everywhere(later: int) -> None:
    group = Group(3)
    chosen = []
    with group.network.held():
        for number, elsewhere in ((0, B), (1, A)):
            process = group.all[number]
            process.clock.advance(0.01 if number == later else 0.0)
            process.loads.put("x", [LoadMessage(elsewhere, WorkerShare(requests=3))])
            process.loads.apply()
            chosen.append(process.admit("agent").target.id)
    assert chosen == [A, B]
    for process in group.all:
        assert [target for _, target in process.core.selector.sessions.items()] == [chosen[later]]


def test_moves_of_a_session_that_were_lost_are_made_up_for_by_its_next_request() -> None:
    group = Group(2)
    one, other = group.all
    one.peers.cut_off.add("b")
    for process, elsewhere in ((one, B), (other, A)):
        process.loads.put("x", [LoadMessage(elsewhere, WorkerShare(requests=3))])
        process.loads.apply()
        process.admit("agent")
    assert {*one.core.selector.sessions.items()} != {*other.core.selector.sessions.items()}
    one.peers.cut_off.clear()
    one.clock.advance(0.01)
    last = one.admit("agent").target.id
    for process in group.all:
        assert [target for _, target in process.core.selector.sessions.items()] == [last]


def test_where_sessions_went_is_known_to_a_process_that_starts_later_but_undoes_no_later_move() -> None:
    group = Group(1, "a")
    (one,) = group.all
    for session in ("early", "late"):
        one.admit(session)
        one.clock.advance(2 * CROSSING_S)
    history = [message for message in _list_messages(one.core) if isinstance(message, SessionMoved)]
    assert [message.target for message in history] == [A, A]
    other = Process("other", group.network)
    other.loads.put("x", [LoadMessage(A, WorkerShare(requests=3))])
    other.loads.apply()
    other.clock.advance(2 * CROSSING_S + 0.1)
    other.admit("late")
    for message in history:
        other.core.apply(message, "a")
    assert sorted(target for _, target in other.core.selector.sessions.items()) == [A, B]


def test_the_progress_of_a_session_is_known_elsewhere_where_a_policy_reads_it() -> None:
    group = Group(2)
    one, other = group.all
    for process in group.all:
        process.core.swap(PolicySet(POLICIES.policies, "sticky"))
    for tool_call in (False, True):
        ticket = one.admit("agent")
        ticket.end, ticket.record.tool_call = "ok", tool_call
        one.core.settle(ticket)
    sent = group.network.messages(SessionAnswered)
    assert [(one.turn, one.answered_s, one.tool_call) for one in sent] == [(1, 100.0, False), (2, 100.0, True)]
    view = other.admit("agent").attempt.decision.view
    assert (view.session_turn, view.idle_s, view.after_tool_call) == (2, 0.0, True)


def test_progress_that_no_policy_reads_is_not_sent() -> None:
    group = Group(2)
    ticket = group.all[0].admit("agent")
    ticket.end = "ok"
    group.all[0].core.settle(ticket)
    assert group.network.messages(SessionAnswered) == []


def test_a_stored_response_is_found_by_all_and_by_one_that_starts_later() -> None:
    group = Group(2)
    one, other = group.all
    one.core.remember_response("resp_1", B, "acme")
    assert other.core.response_target("resp_1") == B
    assert other.core.responses() == [("resp_1", B, "acme")]
    assert group.network.messages(ResponseStored, "b") == [], "it is not passed on"
    late = Process("late", group.network)
    group.network.send_state("b", "late")
    assert late.core.responses() == [("resp_1", B, "acme")]


# engines


def test_a_drain_counts_everywhere_also_for_an_instance_that_joins_later() -> None:
    group = Group(1)
    (one,) = group.all
    other = Process("other", group.network, "")
    assert one.core.drain("a", True)
    assert not one.core.drain("zz", True)
    assert group.network.messages(DrainMessage) == [DrainMessage("a", True, 1, "a")]
    other.join("a")
    assert other.core.fleet.candidates("m", (), 100.0) == ()
    late = Process("late", group.network, "a")
    group.network.send_state("a", "late")
    assert late.core.fleet.candidates("m", (), 100.0) == ()
    assert other.core.drain("a", False)
    for process in (other, late):
        assert len(process.core.fleet.candidates("m", (), 100.0)) == 1
    assert len(one.core.fleet.candidates("m", (), 100.0)) == 2


def fill(process: Process, cache: Cache) -> None:
    """Let the engine `a` join, and announce a block."""
    process.core.add_instance("a", [CARD], [EventEndpoint(0, "tcp://a:5557", None, "")])
    process.core.indexer.on_batch(A, cache.batch())
    process.core.indexer.on_batch(A, cache.batch(cache.stored(list(range(4)))))
    assert process.core.indexer.holders(BLOCK.keys[4][0])[0] == [A]


def test_a_cache_is_forgotten_once_by_all_and_by_one_that_missed_it() -> None:
    group = Group(2)
    one, other = group.all
    cache, (key,) = Cache(), BLOCK.keys[4]
    fill(other, cache)
    assert one.core.forget_cache("a")
    assert not one.core.forget_cache("zz")
    assert other.core.indexer.holders(key)[0] == []
    assert group.network.messages(CacheForgotten) == [CacheForgotten("a", 1, "a")]
    fill(other, cache)
    group.network.send_state("a", "b")  # after a gap: it has forgotten this one
    assert other.core.indexer.holders(key)[0] == [A]
    late = Process("late", group.network)
    fill(late, cache)
    group.network.send_state("a", "late")
    assert late.core.indexer.holders(key)[0] == []
    fill(late, cache)
    one.core.forget_cache("a")
    for process in (other, late):
        assert process.core.indexer.holders(key)[0] == []


def test_a_breaker_that_opened_is_open_for_all_and_a_good_answer_anywhere_closes_it() -> None:
    group = Group(2, "a")
    one, other = group.all
    one.fail(2, sender="ann")
    assert group.network.messages(BreakerMoved) == []
    one.fail(sender="bob")
    moved = BreakerMoved(A, True, "bob", True)
    assert group.network.messages(BreakerMoved) == [moved]
    breaker = other.target().breaker
    assert (breaker.state(100.0), breaker.allows(100.0, "carol")) == ("open", False)
    assert breaker.times_opened == 0, "counted where it happened"
    late = Process("late", group.network, "a")
    group.network.send_state("b", "late")
    assert late.target().breaker.is_open
    other.fail(end="ok")
    assert [process.target().breaker.is_open for process in (one, other, late)] == [False] * 3
    assert [message for message in late.core.state() if isinstance(message, BreakerMoved)] == []


def test_an_engine_that_cannot_be_reached_from_here_is_only_suspected_elsewhere() -> None:
    group = Group(2, "a")
    one, other = group.all
    one.fail(5, "connect")
    assert one.target().breaker.is_open
    assert not other.target().breaker.is_open
    assert (one.suspected, other.suspected) == ([], ["a"]), "published once in a while"
    assert [*one.core.state()] == []
    one.clock.advance(SUSPECT_AGAIN_S)
    one.fail(end="connect")
    assert other.suspected == ["a", "a"]
    assert group.network.messages(BreakerMoved) == []
    assert group.network.messages(InstanceSuspected) == [InstanceSuspected("a")] * 2


def test_a_prediction_that_an_answer_has_checked_counts_elsewhere() -> None:
    group = Group(3, "a")
    one, *others = group.all
    for n in range(3):
        one.target().overlap_accuracy.observe(64, 0, 16)  # it hit nothing of what the events promised
        one.core._report_finding(one.target())
        if n == 0:
            assert group.network.messages(PredictionChecked)
    assert not one.target().overlap_accuracy.trusted
    assert [process.target().overlap_accuracy.trusted for process in others] == [False, False]
    assert group.network.messages(PredictionChecked, "b") == []


def test_an_index_that_is_proved_wrong_is_forgotten_elsewhere_and_trusted_again() -> None:
    group = Group(2, "a")
    one, other = group.all
    fill(other, Cache())
    for _ in range(3):
        one.target().overlap_accuracy.observe(64, 0, 16)
        one.core._report_finding(one.target())
    assert not other.target().overlap_accuracy.trusted
    for _ in range(2):
        one.target().overlap_accuracy.add_proof()
        one.core._report_finding(one.target())
    assert other.target().overlap_accuracy.trusted
    assert other.core.indexer.holders(BLOCK.keys[4][0])[0] == []
    assert other.target().overlap_accuracy.contradictions == 0, "counted where it happened"


# caches


def test_blocks_on_their_way_are_expected_by_the_others_and_those_of_a_target_without_events_are_kept() -> None:
    """So that a burst on a new prefix does not scatter over the fleet because it came to several processes."""
    group = Group(2, "a")
    here, there = group.all
    for process in group.all:
        process.target().set_block_tokens(4)
    expected = []

    def look() -> None:
        (estimate,) = there.core.indexer.estimate_overlaps(prompt_of(list(range(20))), {A: 4}, frozenset()).values()
        assert estimate.overlap is not None
        expected.append((estimate.overlap.gpu_tokens, estimate.overlap.expected_tokens))

    ticket = here.admit()
    look()
    ticket.status = 200
    here.core.on_first_byte(ticket)
    look()
    sent = group.network.messages(BlocksSent)
    assert [(message.target, message.computed, len(message.keys)) for message in sent] == [
        (A, False, 40),
        (A, True, 40),
    ]
    assert expected == [(0, 16), (16, 16)]
    assert group.network.messages(BlocksSent, "b") == [], "it is not passed on"
