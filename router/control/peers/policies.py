"""Policies, rollbacks and the audit log over several processes: a decision at one process is in force everywhere.

    switch      a decision has a version above all that its process had seen (Lamport), so that all choose the same one
    rollback    a set that only grows: an arm that one process rolled back is out everywhere, whatever is switched later
    audit log   each process publishes its entries, numbered; the others add them to their own logs

The whole policy set is one decision: of two switches that were made at once, at processes that could not reach each
other, one counts and the other is only in the audit logs. A process that starts has the policies of its files until
it receives a decision, which then replaces them. If policies cannot be built here (a scorer that is not installed,
a newer version), the previous ones stay in force, and `GET /admin/policies` shows the error of the source
`replicas`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import msgspec

from router.control.control import Control
from router.control.peers.parts import Message, Peers
from router.control.policy_rule import PolicyRule, build_from_rule, rule_of
from router.control.summaries import fingerprint
from router.control.switch import DecisionVersion
from router.scheduling.experiments.policy_set import PolicySet
from router.tasks import Tasks
from router.telemetry.audit_log import AuditEntry
from scorers.registry import load_registry

log = logging.getLogger("warmroute.peers")

SHARED_ENTRIES = 50  # of the audit log, sent again to a peer that missed something


class PolicyDecision(Message, frozen=True):
    """The policies that somebody put in force at one process. The highest `version` counts; among equal versions,
    the greatest `by`.
    """

    version: int
    by: str  # run id of the process that decided
    what: str  # as in the audit log
    back: bool  # it undoes another decision
    rule: PolicyRule  # without arms rolled back: `ArmRolledBack` names them
    started: int = 0  # version of the decision that started its experiment, and by whom
    started_by: str = ""


class ArmRolledBack(Message, frozen=True):
    """An arm stays out of the experiment with this fingerprint, whichever process rolled it back."""

    experiment: str
    arm: str


class AuditShared(Message, frozen=True):
    """An entry of the sender's audit log."""

    number: int  # among those of its run, from 1
    entry: AuditEntry


class SharedPolicies:
    """Puts the decisions of peers in force, and publishes those of this process. `on_applied` is called when a
    decision of a peer is in force here, or cannot be.
    """

    messages: ClassVar[Sequence[type[Message]]] = (PolicyDecision, ArmRolledBack, AuditShared)

    def __init__(self, control: Control, peers: Peers) -> None:
        self._run = peers.run
        self._peers = peers
        self._control = control
        self._send = peers.share
        self.on_applied: Callable[[], None] = lambda: None
        self._registry = load_registry()
        self._latest: PolicyDecision | None = None
        self._started = (0, "")  # version and maker of the decision that started the running experiment
        if (kept := control.kept) is not None:
            self._started = kept.started, kept.started_by
            version, rule = max(1, kept.version), kept.in_force
            self._latest = PolicyDecision(version, kept.by, kept.what, False, rule, *self._started)
        self._fingerprint = fingerprint(control.policy_set)
        self._named, self._name = control.policy_set, self._fingerprint
        self._wake = asyncio.Event()
        self._entries: deque[AuditShared] = deque(maxlen=SHARED_ENTRIES)
        self._entered = 0  # entries of this run so far
        self._last_numbers: dict[str, int] = {}  # number of the last entry, by run
        for entry in reversed(control.audit.latest()):
            if entry.replica is not None and entry.number is not None:
                self._last_numbers[entry.replica] = entry.number
        control.report_to(self)

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("policies of replicas", self._follow)

    @property
    def version(self) -> DecisionVersion:
        if (latest := self._latest) is None:
            return DecisionVersion()
        return DecisionVersion(latest.version, latest.by, *self._started)

    # decided here

    def on_switch(self, what: str, after: PolicySet, *, back: bool) -> None:
        version = 1 if self._latest is None else self._latest.version + 1
        if fingerprint(after) != self._fingerprint:
            self._fingerprint, self._started = fingerprint(after), (version, self._run)
        self._latest = PolicyDecision(version, self._run, what, back, rule_of(after), *self._started)
        self._send(self._latest)

    def on_rollback(self, experiment: str, arm: str) -> None:
        self._send(ArmRolledBack(experiment, arm))

    def on_entry(self, entry: AuditEntry) -> None:
        self._entered += 1
        shared = AuditShared(self._entered, entry)
        self._entries.append(shared)
        self._send(shared)

    @property
    def experiment_id(self) -> str | None:
        """Return the name of the running experiment at all processes; None if none runs. An experiment that was
        ended and begun again has another name, even with the same arms.
        """
        policy_set = self._control.policy_set
        if policy_set is not self._named:
            self._named, self._name = policy_set, fingerprint(policy_set)
        version, by = self._started
        return None if self._name is None else f"{self._name}@{version}{by}"

    # decided elsewhere

    def state(self) -> Iterator[Message]:
        for experiment, arm in self._control.rollbacks:
            yield ArmRolledBack(experiment, arm)
        if self._latest is not None:
            yield self._latest
        yield from self._entries

    def forget(self, run: str) -> None:
        """Do nothing: decisions outlive the peer that made them."""

    def apply(self, message: Any, run: str) -> None:
        match message:
            case PolicyDecision():
                if self._latest is None or (message.version, message.by) > (self._latest.version, self._latest.by):
                    self._latest = message
                    self._wake.set()
            case ArmRolledBack():
                self._control.follow_rollback(message.experiment, message.arm, near=run in self._peers.near_runs())
            case AuditShared():
                if message.number > self._last_numbers.get(run, 0):
                    self._last_numbers[run] = message.number
                    entry = msgspec.structs.replace(message.entry, replica=run, number=message.number)
                    self._control.audit.add(entry)

    async def _follow(self) -> None:
        """Until cancelled, put each new latest decision in force if another process made it."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            decision = self._latest
            if decision is None or decision.by == self._run:
                continue
            log.info("peer %s: %s", decision.by, decision.what)
            build = partial(build_from_rule, decision.rule, registry=self._registry)
            near, confirm = decision.by in self._peers.near_runs(), partial(self._confirm, decision)
            await self._control.follow_replica(decision.what, build, confirm, back=decision.back, near=near)
            self._fingerprint = fingerprint(self._control.policy_set)
            self.on_applied()

    def _confirm(self, decision: PolicyDecision) -> bool:
        """Return whether `decision` is still the one that counts; called just before it is put in force."""
        if self._latest is not decision:
            return False
        self._started = decision.started, decision.started_by
        return True
