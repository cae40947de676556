"""Which policies and engines other processes have, and when all workers of a host have the same policies in force."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.config import schema
from router.control.peers import facts
from router.control.peers.facts import PeerFacts, SharedFacts
from router.control.peers.policies import SharedPolicies
from router.control.workers.host_workers import describe_members
from router.control.workers.messages import LivingWorker, Members
from router.scheduling.experiments.policy_set import PolicySet
from router.tasks import Tasks
from router.telemetry.metrics.snapshot import ReplicaReport
from tests.fakes.engines import eventually
from tests.patience import PATIENCE_S
from tests.router.control.control_plane import TEXTS, ControlPlane
from tests.router.control.peers.memory_network import MemoryNetwork


class Process:
    """A worker of a host, with policies that it shares."""

    def __init__(self, run: str, network: MemoryNetwork) -> None:
        self.run = run
        self.plane = ControlPlane()
        self.trouble: str | None = None
        self.members: set[str] = set()
        peers = network.join(run)
        self.facts = SharedFacts(self.plane.core, peers, lambda: self.members, lambda: self.trouble, list)
        self.policies = SharedPolicies(self.plane.control, peers)
        self.policies.on_applied = self.facts.publish
        self.plane.control.wait_for_workers_with(self.facts.wait_until_applied)
        peers.parts += [self.policies, self.facts]
        network.meet(run)

    @asynccontextmanager
    async def following(self) -> AsyncIterator[None]:
        """Put the policies of others in force meanwhile."""
        tasks = Tasks(self.run)
        self.policies.start(tasks)
        yield
        await tasks.close()


def workers(runs: str) -> tuple[MemoryNetwork, list[Process]]:
    network = MemoryNetwork()
    made = [Process(run, network) for run in runs]
    for process in made:
        process.members = {*runs} - {process.run}
    return network, made


def report(run: str | None, *, up: bool = True) -> ReplicaReport:
    return ReplicaReport("10.0.0.1:1", run, False, up, 0.1, 0.1, 1, 1, 0)


def agreement(process: Process, run: str) -> tuple[bool | None, bool | None, int | None]:
    found = process.facts.compare(report(run))
    return found.same_policies, found.same_instances, found.instances


def test_processes_see_whether_they_agree() -> None:
    network, (a, b) = workers("ab")
    assert agreement(a, "b") == agreement(b, "a") == (True, True, 0)
    b.plane.core.fleet.join(schema.InstanceConfig(name="x", url="http://x:1"))
    b.facts.publish()
    assert (agreement(a, "b"), agreement(b, "a")) == ((True, False, 1), (True, False, 0))
    a.plane.core.swap(PolicySet(a.plane.control.policy_set.policies, "other"))
    a.facts.publish()
    assert agreement(b, "a") == (False, False, 0)
    assert a.facts.compare(report("b", up=False)).same_policies is None
    assert a.facts.compare(report(None)).same_policies is None
    assert agreement(a, "unknown") == (None, None, None)
    network.end("b")
    assert agreement(a, "b") == (None, None, None)


def test_facts_are_published_when_they_have_changed() -> None:
    network, (a, _) = workers("ab")
    network.sent.clear()
    a.facts.publish()
    a.facts.publish()
    assert len(network.messages(PeerFacts)) == 1
    a.trouble = "policies of a newer version"
    a.facts.publish()
    assert network.messages(PeerFacts)[-1].trouble == a.trouble


async def test_a_switch_is_answered_when_all_workers_of_the_host_have_it_in_force() -> None:
    _, (a, b, c) = workers("abc")
    c.members = a.members = {"b"}  # the third one is on another host
    async with b.following():
        async with asyncio.timeout(PATIENCE_S):
            await a.plane.control.put_policy("new", TEXTS["far"], "ann", activate=True)
        assert (b.plane.active, c.plane.active) == ("new", "near")
        assert a.facts.find("b") == a.facts.own() == a.facts.find("a")


async def test_a_switch_does_not_wait_for_a_worker_that_has_ended() -> None:
    network, (a, b, _) = workers("abc")
    async with b.following():
        waiting = asyncio.create_task(a.plane.control.activate("far", "ann"))
        await eventually(lambda: b.plane.active == "far")
        assert not waiting.done()
        a.members = {"b"}
        network.end("c")
        async with asyncio.timeout(PATIENCE_S):
            await waiting


async def test_a_switch_is_answered_after_a_while_though_a_worker_has_not_applied_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(facts, "APPLY_TIMEOUT_S", 0.02)
    _, (a, b) = workers("ab")
    async with asyncio.timeout(PATIENCE_S):
        await a.plane.control.activate("far", "ann")
    assert (a.plane.active, b.plane.active) == ("far", "near")


def test_the_workers_of_a_host_are_described_also_those_that_do_not_live() -> None:
    _, (a, b) = workers("ab")
    b.trouble = "cannot be built"
    b.facts.publish()
    living = [LivingWorker(0, "a", 17, True), LivingWorker(2, "b", 19, False), LivingWorker(3, "new", 20, False)]
    first, second, third, starting = describe_members(Members(living, on_duty=0), 4, a.facts)
    digests = a.plane.control.policy_set.digests
    assert first == {
        "number": 0,
        "pid": 17,
        "run": "a",
        "up": True,
        "on_duty": True,
        "policies": digests,
        "trouble": None,
    }
    assert (second["number"], second["pid"], second["run"], second["up"]) == (1, None, None, False)
    assert (third["pid"], third["up"], third["on_duty"], third["policies"]) == (19, False, False, digests)
    assert third["trouble"] == "cannot be built"
    assert (starting["run"], starting["policies"], starting["trouble"]) == ("new", {}, None)
