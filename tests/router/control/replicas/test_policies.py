"""Switches, rollbacks and audit logs of several routers whose messages cross, get lost, and arrive in any order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from router.config.sections.experiment import ExperimentConfig
from router.control.replicas.frames import decode_messages, decode_replica_frame, encode_replica_frame
from router.control.replicas.policies import SharedPolicies
from router.control.replicas.policy_messages import ArmRolledBack, PolicyDecision
from router.control.workers.messages import Message
from router.scheduling.experiments.results import Finding
from router.tasks import Tasks
from router.telemetry.audit_log import AuditLog
from tests.fakes.engines import eventually
from tests.router.control.control_plane import EXPERIMENT, TEXTS, ControlPlane, experiment

TOO_SLOW = Finding("far", "limit", "ttft_p90_max_ms", "too slow", 10, 1e6, None, None)


class RouterOf:
    """A router's policies. What it sends waits in `sent` for `deliver`."""

    def __init__(self, run: str, running: ExperimentConfig | None = None, audit: AuditLog | None = None) -> None:
        self.run = run
        self.plane = ControlPlane(running=running, audit=audit)
        self.sent: list[Message] = []
        self.shared = SharedPolicies(run, self.plane.control, self.sent.append)

    @property
    def active(self) -> str:
        return self.plane.active

    @property
    def rolled_back(self) -> frozenset[str]:
        return self.plane.control.policy_set.rolled_back

    def take(self) -> list[Message]:
        taken, self.sent[:] = [*self.sent], []
        return taken

    def hear(self, messages: list[Message], run: str) -> None:
        """Take over messages as they come out of a frame."""
        frame = decode_replica_frame(encode_replica_frame("direct", run, 0, 0.0, messages))
        assert frame is not None
        found, skipped = decode_messages(frame)
        assert skipped == 0
        for message in found:
            self.shared.apply(message, run)

    def entries(self) -> list[tuple[str, str, str | None]]:
        """Who did what where, without starts, oldest first."""
        log = reversed(self.plane.audit.latest())
        return [(entry.who, entry.what, entry.replica) for entry in log if entry.before is not None]


def deliver(*routers: RouterOf) -> None:
    """Everything sent so far arrives everywhere."""
    for sender in routers:
        messages = sender.take()
        for router in routers:
            if router is not sender:
                router.hear(messages, sender.run)


def meet(*routers: RouterOf) -> None:
    """Each hears the state of all others, as after a partition; what was sent meanwhile is lost."""
    states = [(router.run, [*router.shared.state()]) for router in routers]
    for router in routers:
        router.take()
        for run, state in states:
            if run != router.run:
                router.hear(state, run)


@asynccontextmanager
async def following(*routers: RouterOf) -> AsyncIterator[None]:
    tasks = Tasks("test")
    for router in routers:
        router.shared.start(tasks)
    yield
    await tasks.close()


async def test_a_switch_at_one_router_is_in_force_and_in_the_audit_log_of_all() -> None:
    a, b = RouterOf("a"), RouterOf("b")
    async with following(a, b):
        await a.plane.control.put_policy("new", TEXTS["far"], "ann", activate=True)
        deliver(a, b)
        await eventually(lambda: b.active == "new")
        assert b.plane.control.policy_set.digests == a.plane.control.policy_set.digests
        assert b.entries() == [("ann", "put policy new and activate it", "a")]
        (entry, _) = b.plane.audit.latest(2)
        assert entry == msgspec.structs.replace(a.plane.audit.latest(1)[0], replica="a", number=1)
        await b.plane.control.undo("bob")  # of what was switched at the other one
        deliver(a, b)
        await eventually(lambda: a.active == "near")
        assert a.entries() == [("ann", "put policy new and activate it", None), ("bob", "undo", "b")]
        assert (a.plane.control.switches, b.plane.control.switches) == (
            {"admin": 1, "replicas": 1},
            {"replicas": 1, "admin": 1},
        )
        assert (list(a.plane.control._switch.undo), list(b.plane.control._switch.undo)) == ([], [])


async def test_switches_that_were_made_at_once_end_the_same_everywhere() -> None:
    for order in ("abc", "bca"):
        a, b, c = (RouterOf(run) for run in "abc")
        async with following(a, b, c):
            await a.plane.control.activate("far", "ann")
            await b.plane.control.activate("other", "bob")
            messages = {"a": a.take(), "b": b.take(), "c": []}
            for run in order:
                for router in (a, b, c):
                    if router.run != run:
                        router.hear(messages[run], run)
            await eventually(lambda: {a.active, b.active, c.active} == {"other"})  # noqa: B023
            await asyncio.sleep(0)
            assert {a.active, b.active, c.active} == {"other"}
            for router in (a, b, c):  # both decisions can be read everywhere
                assert {what for _, what, _ in router.entries()} == {"activate far", "activate other"}


async def test_after_a_partition_the_side_that_decided_more_often_counts_and_all_entries_are_everywhere() -> None:
    a, b = RouterOf("a"), RouterOf("b")
    async with following(a, b):
        for name in ("far", "near", "far"):
            await a.plane.control.activate(name, "ann")
        await b.plane.control.activate("other", "bob")
        meet(a, b)
        await eventually(lambda: b.active == "far")
        meet(a, b)
        assert (a.active, b.active) == ("far", "far")
        assert sorted(what for _, what, _ in a.entries()) == sorted(what for _, what, _ in b.entries())
        assert len(a.entries()) == 4
        await b.plane.control.activate("near", "bob")  # what is decided after that counts, whoever is asked
        deliver(a, b)
        await eventually(lambda: a.active == "near")


async def test_a_router_that_starts_takes_over_what_was_decided_before() -> None:
    a, b = RouterOf("a", experiment()), RouterOf("b", experiment())
    async with following(a, b):
        a.plane.control.handle_finding(TOO_SLOW)
        await a.plane.control.put_policy("kept", TEXTS["other"], "ann")
        meet(a, b)
        await eventually(lambda: "kept" in b.plane.control.policy_set.policies)
        assert b.rolled_back == {"far"}


async def test_an_arm_rolled_back_at_one_router_stays_out_whatever_another_switches_meanwhile() -> None:
    a, b = RouterOf("a", experiment()), RouterOf("b", experiment())
    async with following(a, b):
        a.plane.control.handle_finding(TOO_SLOW)
        for _ in range(2):  # so that this router's decision counts, which knows nothing of the rollback
            await b.plane.control.put_policy("more", TEXTS["other"], "bob")
            await b.plane.control.put_policy("more", TEXTS["near"], "bob")
        meet(a, b)
        await eventually(lambda: "more" in a.plane.control.policy_set.policies)
        assert (a.rolled_back, b.rolled_back) == ({"far"}, {"far"})
        assert b.plane.core.experiment is not None
        assert b.plane.core.experiment.report().arms[1].out is not None
        await b.plane.control.end_experiment("bob")
        await b.plane.control.start_experiment(EXPERIMENT, "bob")  # another one, by its limits
        assert b.rolled_back == set()


async def test_policies_that_cannot_be_built_here_leave_those_in_force_and_are_an_error() -> None:
    a, b = RouterOf("a"), RouterOf("b")
    async with following(a, b):
        await a.plane.control.activate("far", "ann")
        (decision,) = [message for message in a.take() if isinstance(message, PolicyDecision)]
        for text in ('{"scorers": [{"name": "of_tomorrow"}]}', '{"scorers": [], "field_of_tomorrow": 1}'):
            policies = decision.rule.policies | {"far": text}
            rule = msgspec.structs.replace(decision.rule, policies=policies)
            b.plane.control.errors.clear()
            b.hear([msgspec.structs.replace(decision, rule=rule, version=decision.version)], "a")
            await eventually(lambda: "replicas" in b.plane.control.errors)
            assert b.active == "near"
            decision = msgspec.structs.replace(decision, version=decision.version + 1)
        b.hear([decision], "a")
        await eventually(lambda: b.active == "far")
        assert b.plane.control.errors == {}
        await b.plane.control.activate("other", "bob")  # counts over all of them
        deliver(b, a)
        await eventually(lambda: a.active == "other")


async def test_entries_are_not_repeated_after_a_restart_with_an_audit_file(tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    a, b = RouterOf("a"), RouterOf("b", audit=AuditLog(file))
    async with following(a, b):
        await a.plane.control.activate("far", "ann")
        meet(a, b)
        meet(a, b)
        await eventually(lambda: b.active == "far")
        await b.plane.audit.flush()
        again = RouterOf("b2", audit=AuditLog(file))
        await a.plane.control.activate("near", "ann")
        meet(a, again)
        assert again.entries() == [("ann", "activate far", "a"), ("ann", "activate near", "a")]


async def test_a_rollback_of_another_experiment_waits_until_that_one_is_back() -> None:
    a = RouterOf("a")
    async with following(a):
        b = RouterOf("b", experiment())
        b.plane.control.handle_finding(TOO_SLOW)
        (rollback,) = [message for message in b.take() if isinstance(message, ArmRolledBack)]
        a.hear([rollback], "b")
        assert a.plane.control.policy_set.experiment is None
        await a.plane.control.start_experiment(experiment().model_dump_json(exclude_defaults=True), "ann")
        assert a.rolled_back == {"far"}
