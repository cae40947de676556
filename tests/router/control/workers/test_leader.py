"""A leader's messages over real channels, whose other ends are the test's own, and its table of followers' bookings."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from router.clock import ManualClock
from router.config import schema
from router.config.lookup import list_shipped_policies
from router.config.reader import read_policy_file
from router.config.sections.experiment import ExperimentConfig
from router.control.workers import leader as leader_module
from router.control.workers.channel import Channel
from router.control.workers.follower import LocalState
from router.control.workers.leader import LeaderWorker, ReportedLoads
from router.control.workers.messages import (
    AnswerMessage,
    AskMessage,
    DrainMessage,
    LoadMessage,
    PolicyApplied,
    PolicyRule,
    RequestBegan,
    ResponseStored,
    SessionMoved,
    StartMessage,
    WorkerUp,
)
from router.control.workers.scheduler import SyncedScheduler
from router.fleet.engine_facts import ModelCard
from router.fleet.worker_share import NO_SHARE, WorkerShare
from router.kvcache.events import TargetId
from router.request.admission.waiting import AdmissionQueues
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.tasks import Tasks
from router.telemetry.metrics.prometheus import Metrics
from router.telemetry.metrics.snapshot import RouterSnapshot
from router.telemetry.recent_records import RecentRecords
from router.wiring import WorkerRole, build_scheduler
from tests.fakes.caches import RING
from tests.fakes.engines import eventually

A, B = TargetId("a/0"), TargetId("b/0")
WARM = build_policy("warm", read_policy_file(list_shipped_policies()["warm"]))
OTHER = build_policy("other", schema.PolicyConfig.model_validate({"scorers": [{"name": "random"}]}))
ARMS = ExperimentConfig.model_validate({"arms": {"warm": 50, "other": 50}})


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


class FollowerEnd:
    """A follower's end of its line."""

    def __init__(self) -> None:
        self.heard: list[Any] = []
        self.channel: Channel

    def of(self, kind: type[Any]) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]


class LeaderSetup:
    def __init__(self) -> None:
        self.tasks = Tasks("test")
        clock = ManualClock(100.0)
        config = schema.Config(workers=3, seed=7)
        self.leader = LeaderWorker(config, 5, clock, self.tasks)
        regime = PolicySet({"warm": WARM, "other": OTHER}, "warm")
        core = build_scheduler(config, regime, RING, clock, secret=5, role=WorkerRole(0, 5, self.leader))
        self.core = cast(SyncedScheduler, core)
        metrics = Metrics(lambda: RouterSnapshot(), lambda model: True)
        queues = AdmissionQueues(config.admission, core, clock, lambda model, queue, end, s: None)
        self.leader.attach(LocalState("run0", self.core, RecentRecords(10), metrics, clock), queues)
        self.core.fleet.join(schema.InstanceConfig(name="a", url="http://a:8000"))
        self.core.add_instance("a", [ModelCard("m", None, None, None)], [])
        self.followers: list[FollowerEnd] = []

    async def add_follower(self) -> FollowerEnd:
        follower = FollowerEnd()
        ours, theirs = socket.socketpair()
        follower.channel = await Channel.open(theirs, follower.heard.append, lambda: None, lambda target: NO_SHARE)
        self.followers.append(follower)
        await self.leader._on_start(len(self.followers), ours)
        return follower

    @property
    def requests(self) -> int:
        target = self.core.fleet.target(A)
        assert target is not None
        return target.load_book.requests


@asynccontextmanager
async def leader_setup() -> AsyncIterator[LeaderSetup]:
    setup = LeaderSetup()
    try:
        yield setup
    finally:
        for follower in setup.followers:
            follower.channel.close()
        await eventually(lambda: not setup.leader._members)
        await setup.tasks.close()


async def test_the_first_words_are_all_that_a_follower_needs() -> None:
    async with leader_setup() as s:
        s.core.drain("a", True)
        s.core.selector.sessions.put((False, "m", "agent"), "a/0")
        s.core.remember_response("resp_1", A)
        follower = await s.add_follower()
        await eventually(lambda: follower.of(ResponseStored))
        (start,), (rule,) = follower.of(StartMessage), follower.of(PolicyRule)
        settings = schema.Config.model_validate_json(start.config)
        assert (start.number, start.secret, settings.seed, settings.watch) == (1, 5, 7, False)
        assert settings.tokens.memory_bytes == schema.TokensConfig().memory_bytes // 3
        assert (rule.active, sorted(rule.policies), rule.version) == ("warm", ["other", "warm"], s.core.version)
        assert follower.of(DrainMessage) == [DrainMessage("a", True)]
        assert follower.of(SessionMoved) == [SessionMoved(False, "m", "agent", "a/0")]
        assert follower.of(ResponseStored) == [ResponseStored("resp_1", "a/0")]


async def test_everybody_hears_of_the_load_of_all_others() -> None:
    async with leader_setup() as s:
        one, other = await s.add_follower(), await s.add_follower()
        one.channel.send(LoadMessage(A, WorkerShare(requests=2)))
        await eventually(lambda: LoadMessage(A, WorkerShare(requests=2)) in other.heard)
        assert s.requests == 2
        assert all(load.share == NO_SHARE for load in one.of(LoadMessage)), "its own load is not told to it"
        other.channel.send(LoadMessage(A, WorkerShare(requests=5)))
        await eventually(lambda: LoadMessage(A, WorkerShare(requests=5)) in one.heard)
        assert s.requests == 7
        one.channel.close()
        await eventually(lambda: s.requests == 5)
        assert s.core.own_share(A) == NO_SHARE


async def test_where_words_cross_all_end_with_the_leaders_order() -> None:
    """The leader says a, the follower b before it hears that: b came later, and the follower hears so."""
    async with leader_setup() as s:
        one, other = await s.add_follower(), await s.add_follower()
        mine, theirs = SessionMoved(False, "m", "agent", "a/0"), SessionMoved(False, "m", "agent", "b/0")
        one.channel.send(theirs)
        s.leader.send(mine)
        s.core.apply_sessions([mine])
        await eventually(lambda: theirs in one.heard and theirs in other.heard)
        for follower in (one, other):
            assert follower.of(SessionMoved)[-1] == theirs
        assert s.core.selector.sessions.items() == [((False, "m", "agent"), "b/0")]


async def test_a_switch_waits_for_those_that_take_connections() -> None:
    async with leader_setup() as s:
        follower = await s.add_follower()
        await s.leader.wait_until_applied()  # one that is not up does not hold anybody up
        follower.channel.send(WorkerUp("run1", 1))
        await eventually(lambda: s.leader.describe_workers()[1]["up"])
        s.core.swap(PolicySet({"warm": WARM, "other": OTHER}, "other"))
        waiting = s.tasks.spawn("wait", s.leader.wait_until_applied())
        await eventually(lambda: [rule.active for rule in follower.of(PolicyRule)][-1:] == ["other"])
        assert not waiting.done()
        follower.channel.send(PolicyApplied(follower.of(PolicyRule)[-1].version, {"other": OTHER.digest}))
        await waiting
        assert s.leader.describe_workers()[1]["policies"] == {"other": OTHER.digest}


async def test_a_request_of_an_earlier_experiment_does_not_count_for_this_one() -> None:
    async with leader_setup() as s:
        follower = await s.add_follower()
        before = s.core.version
        s.core.swap(PolicySet({"warm": WARM, "other": OTHER}, "warm", ARMS))
        follower.channel.send(RequestBegan(before, 1, "warm", b"early", 99.0))
        follower.channel.send(RequestBegan(s.core.version, 2, "warm", b"now", 99.5))
        trial = s.core.experiment
        assert trial is not None
        await eventually(lambda: trial.open_units)
        assert trial.open_units == 1


def test_everybody_but_one() -> None:
    loads = ReportedLoads()
    for follower in (1, 2, 3):
        loads.put(follower, A, WorkerShare(follower, follower, 10 * follower, 0.5, 100, 100))
    assert loads.total(A) == WorkerShare(6, 6, 60, 1.5, 300, 300)
    assert loads.total(A, excluding=2) == WorkerShare(4, 4, 40, 1.0, 200, 200)
    assert loads.total(B) == NO_SHARE


def test_the_last_word_counts() -> None:
    loads = ReportedLoads()
    loads.put(1, A, WorkerShare(requests=5))
    loads.put(1, A, WorkerShare(requests=2))
    assert loads.total(A) == WorkerShare(requests=2)
    loads.put(1, A, NO_SHARE)
    assert (loads.total(A), loads.drop(1)) == (NO_SHARE, [])


def test_one_that_is_gone_has_nothing_booked() -> None:
    loads = ReportedLoads()
    loads.put(1, A, WorkerShare(requests=1))
    loads.put(1, B, WorkerShare(requests=1))
    loads.put(2, B, WorkerShare(requests=7))
    assert sorted(loads.drop(1)) == [A, B]
    assert (loads.total(A), loads.total(B)) == (NO_SHARE, WorkerShare(requests=7))
    assert loads.drop(1) == []


@given(st.dictionaries(st.integers(1, 5), st.tuples(*[st.integers(0, 100)] * 6).map(lambda n: WorkerShare(*n))))
def test_the_whole_is_one_and_all_the_others(shares: dict[int, WorkerShare]) -> None:
    loads = ReportedLoads()
    for follower, share in shares.items():
        loads.put(follower, A, share)
    for follower, share in shares.items():
        assert share.plus(loads.total(A, excluding=follower)) == loads.total(A)


async def test_a_follower_that_misses_two_pings_in_a_row_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_module, "PING_TIMEOUT_S", 0.05)
    async with leader_setup() as setup:
        silent, busy = await setup.add_follower(), await setup.add_follower()
        killed: list[int] = []
        monkeypatch.setattr(setup.leader._supervisor, "kill", killed.append)  # these followers are no processes
        for number in range(4):
            pings = [setup.leader._ping(member) for member in setup.leader._members.values()]
            asking = asyncio.gather(*pings)
            if number % 2:  # the busy one misses every other ping
                await eventually(lambda n=number: len(busy.of(AskMessage)) > n)  # type: ignore[misc]
                busy.channel.send(AnswerMessage(busy.of(AskMessage)[-1].number, b""))
                busy.channel.flush()
            await asking
        assert len(silent.of(AskMessage)) == 4
        assert killed == [1, 1, 1]  # after the second, third and fourth
