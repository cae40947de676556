"""Switches, rollbacks and audit logs of several processes whose messages cross, get lost, and arrive in any order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import msgspec
import pytest

from router.config.reader import load_policies
from router.config.schema import Config
from router.config.sections.experiment import ExperimentConfig
from router.control.peers.policies import (
    ArmRolledBack,
    PolicyDecision,
    SharedPolicies,
)
from router.scheduling.experiments.results import Finding
from router.tasks import Tasks
from router.telemetry.audit_log import AuditLog
from tests.fakes.engines import eventually
from tests.paths import CONFIGS
from tests.router.control.control_plane import EXPERIMENT, TEXTS, ControlPlane, experiment
from tests.router.control.peers.memory_network import MemoryNetwork

ROOT_POLICIES = load_policies(Config(policies_dir=str(CONFIGS / "policies")))
SENT_EXPERIMENT = ExperimentConfig.model_validate(
    {"arms": {"warm": 50, "round_robin": 30, "random": 20}, "shadows": ["lmetric"], "guard": {"worse_by": "20%"}}
)
TOO_SLOW = Finding("far", "limit", "ttft_p90_max_ms", "too slow", 10, 1e6, None, None)


class Process:
    """A process with policies, and what it shares of them."""

    def __init__(
        self,
        run: str,
        network: MemoryNetwork,
        running: ExperimentConfig | None = None,
        audit: AuditLog | None = None,
        host: str | None = None,
    ) -> None:
        """`host` None: one of its own."""
        self.plane = ControlPlane(running=running, audit=audit)
        self.peers = network.join(run, host or run)
        self.shared = SharedPolicies(self.plane.control, self.peers)
        self.peers.parts.append(self.shared)

    @property
    def active(self) -> str:
        return self.plane.active

    @property
    def rolled_back(self) -> frozenset[str]:
        return self.plane.control.policy_set.rolled_back

    def entries(self) -> list[tuple[str, str, str | None]]:
        """Who did what where, without starts, oldest first."""
        log = reversed(self.plane.audit.latest())
        return [(entry.who, entry.what, entry.replica) for entry in log if entry.before is not None]


def processes(runs: str = "ab", running: ExperimentConfig | None = None) -> tuple[MemoryNetwork, list[Process]]:
    """On hosts of their own."""
    network = MemoryNetwork()
    return network, [Process(run, network, running) for run in runs]


async def test_a_switch_of_another_worker_of_the_host_is_not_counted_again() -> None:
    network = MemoryNetwork()
    a, b = (Process(run, network, host="one") for run in "ab")
    async with following(a, b):
        await a.plane.control.put_policy("new", TEXTS["far"], "ann", activate=True)
        await eventually(lambda: b.active == "new")
        assert (sum(a.plane.control.switches.values()), sum(b.plane.control.switches.values())) == (1, 0)


@contextmanager
def parted(network: MemoryNetwork) -> Iterator[None]:
    """Process a reaches no other one meanwhile, and learns of all afterwards."""
    cut_off = network.members["a"].cut_off
    cut_off.update(network.members.keys() - {"a"})
    yield
    cut_off.clear()
    network.meet("a")


@asynccontextmanager
async def following(*processes: Process) -> AsyncIterator[None]:
    tasks = Tasks("test")
    for process in processes:
        process.shared.start(tasks)
    yield
    await tasks.close()


async def test_a_switch_at_one_process_is_in_force_and_in_the_audit_log_of_all() -> None:
    _, (a, b) = processes()
    async with following(a, b):
        await a.plane.control.put_policy("new", TEXTS["far"], "ann", activate=True)
        await eventually(lambda: b.active == "new")
        assert b.plane.control.policy_set.digests == a.plane.control.policy_set.digests
        assert b.entries() == [("ann", "put policy new and activate it", "a")]
        (entry, _) = b.plane.audit.latest(2)
        assert entry == msgspec.structs.replace(a.plane.audit.latest(1)[0], replica="a", number=1)
        await b.plane.control.undo("bob")  # of what was switched at the other one
        await eventually(lambda: a.active == "near")
        assert a.entries() == [("ann", "put policy new and activate it", None), ("bob", "undo", "b")]
        assert (a.plane.control.switches, b.plane.control.switches) == (
            {"admin": 1, "replicas": 1},
            {"replicas": 1, "admin": 1},
        )
        assert (list(a.plane.control._switch.undo), list(b.plane.control._switch.undo)) == ([], [])


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_switches_that_were_made_at_once_end_the_same_everywhere(order: str) -> None:
    network, all_ = processes("abc")
    decided = {"a": (all_[0], "far", "ann"), "b": (all_[1], "other", "bob")}
    async with following(*all_):
        with network.held():
            for run in order:
                process, name, who = decided[run]
                await process.plane.control.activate(name, who)
        await eventually(lambda: {process.active for process in all_} == {"other"})
        await asyncio.sleep(0)
        assert {process.active for process in all_} == {"other"}
        for process in all_:  # both decisions can be read everywhere
            assert {what for _, what, _ in process.entries()} == {"activate far", "activate other"}


async def test_after_a_partition_the_side_that_decided_more_often_counts_and_all_entries_are_everywhere() -> None:
    network, (a, b) = processes()
    async with following(a, b):
        with parted(network):
            for name in ("far", "near", "far"):
                await a.plane.control.activate(name, "ann")
            await b.plane.control.activate("other", "bob")
        await eventually(lambda: b.active == "far")
        network.meet("a")
        assert (a.active, b.active) == ("far", "far")
        assert sorted(what for _, what, _ in a.entries()) == sorted(what for _, what, _ in b.entries())
        assert len(a.entries()) == 4
        await b.plane.control.activate("near", "bob")  # what is decided after that counts, wherever it is
        await eventually(lambda: a.active == "near")


async def test_a_process_that_starts_takes_over_what_was_decided_before() -> None:
    network, (a,) = processes("a", experiment())
    async with following(a):
        a.plane.control.handle_finding(TOO_SLOW)
        await a.plane.control.put_policy("kept", TEXTS["other"], "ann")
        b = Process("b", network, experiment())
        async with following(b):
            network.meet("b")
            await eventually(lambda: "kept" in b.plane.control.policy_set.policies)
            assert b.rolled_back == {"far"}


async def test_an_arm_rolled_back_at_one_process_stays_out_whatever_another_switches_meanwhile() -> None:
    network, (a, b) = processes(running=experiment())
    async with following(a, b):
        with parted(network):
            a.plane.control.handle_finding(TOO_SLOW)
            for _ in range(2):  # so that this one's decision counts, which knows nothing of the rollback
                await b.plane.control.put_policy("more", TEXTS["other"], "bob")
                await b.plane.control.put_policy("more", TEXTS["near"], "bob")
        await eventually(lambda: "more" in a.plane.control.policy_set.policies)
        assert (a.rolled_back, b.rolled_back) == ({"far"}, {"far"})
        assert b.plane.core.experiment is not None
        assert b.plane.core.experiment.report().arms[1].out is not None
        await b.plane.control.end_experiment("bob")
        await b.plane.control.start_experiment(EXPERIMENT, "bob")  # another one, by its limits
        assert b.rolled_back == set()


async def test_policies_that_cannot_be_built_here_leave_those_in_force_and_are_an_error() -> None:
    network, (a, b) = processes()
    applied: list[str] = []
    b.shared.on_applied = lambda: applied.append(b.active)
    async with following(a, b):
        network.mute.add("b")
        await a.plane.control.activate("far", "ann")
        network.mute.clear()
        (decision,) = network.messages(PolicyDecision)
        for text in ('{"scorers": [{"name": "of_tomorrow"}]}', '{"scorers": [], "field_of_tomorrow": 1}'):
            rule = msgspec.structs.replace(decision.rule, policies=decision.rule.policies | {"far": text})
            b.plane.control.errors.clear()
            b.shared.apply(msgspec.structs.replace(decision, rule=rule), "a")
            await eventually(lambda: "replicas" in b.plane.control.errors)
            assert b.active == "near"
            decision = msgspec.structs.replace(decision, version=decision.version + 1)
        b.shared.apply(decision, "a")
        await eventually(lambda: b.active == "far")
        assert b.plane.control.errors == {}
        assert applied == ["near", "near", "far"], "also what cannot be applied is reported"
        await b.plane.control.activate("other", "bob")  # counts over all of them
        await eventually(lambda: a.active == "other")


async def test_entries_are_not_repeated_after_a_restart_with_an_audit_file(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    network, (a,) = processes("a")
    b = Process("b", network, audit=AuditLog(file))
    async with following(a, b):
        await a.plane.control.activate("far", "ann")
        network.meet("a")
        await eventually(lambda: b.active == "far")
        await b.plane.audit.flush()
        network.end("b")
        await a.plane.control.activate("near", "ann")
        again = Process("b2", network, audit=AuditLog(file))
        network.meet("b2")
        assert again.entries() == [("ann", "activate far", "a"), ("ann", "activate near", "a")]


async def test_a_rollback_of_another_experiment_waits_until_that_one_is_back() -> None:
    network, (a,) = processes("a")
    b = Process("b", network, experiment())
    async with following(a):
        b.plane.control.handle_finding(TOO_SLOW)
        assert len(network.messages(ArmRolledBack)) == 1
        assert a.plane.control.policy_set.experiment is None
        await a.plane.control.start_experiment(experiment().model_dump_json(exclude_defaults=True), "ann")
        assert a.rolled_back == {"far"}
