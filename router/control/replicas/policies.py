"""Policies, rollbacks and the audit log over several routers: what is decided at one is in force at all.

    switch      a decision has a version above all that its router had seen (Lamport), so that all choose the same one
    rollback    a set that only grows: an arm that one router rolled back is out everywhere, whatever is switched later
    audit log   each router sends its entries, numbered; the others add them to their own logs

The whole policy set is one decision: of two switches that were made at once, at routers that could not hear each other,
one counts and the other is only in the audit logs. A router that starts has the policies of its files until it hears of
a decision; then that one counts. Policies that cannot be built here (a scorer that is not installed, a newer version)
leave those in force, and are the error of the source `replicas` in `GET /admin/policies`.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import msgspec

from router.control.control import Control
from router.control.replicas.policy_messages import ArmRolledBack, AuditShared, PolicyDecision
from router.control.summaries import fingerprint
from router.control.workers.messages import Message
from router.control.workers.scheduler import build_from_rule, make_rule
from router.scheduling.experiments.policy_set import PolicySet
from router.tasks import Tasks
from router.telemetry.audit_log import AuditEntry
from scorers.registry import load_registry

log = logging.getLogger("warmroute.replicas")

SHARED_ENTRIES = 50  # of the audit log, sent again to a router that missed something


class SharedPolicies:
    """Follows what is decided at other routers, and reports with `send` what is decided here. `run` is the id of this
    router's run.
    """

    def __init__(self, run: str, control: Control, send: Callable[[Message], None]) -> None:
        self._run = run
        self._control = control
        self._send = send
        self._registry = load_registry()
        self._latest: PolicyDecision | None = None
        self._started = (0, "")  # version and maker of the decision that started the running experiment
        self._fingerprint = fingerprint(control.policy_set)
        self._named, self._name = control.policy_set, self._fingerprint
        self._wake = asyncio.Event()
        self._entries: deque[AuditShared] = deque(maxlen=SHARED_ENTRIES)
        self._entered = 0  # entries of this run so far
        self._heard: dict[str, int] = {}  # number of the last entry, by run
        for entry in reversed(control.audit.latest()):
            if entry.replica is not None and entry.number is not None:
                self._heard[entry.replica] = entry.number
        control.report_to(self)

    def start(self, tasks: Tasks) -> None:
        tasks.supervise("policies of replicas", self._follow)

    # decided here

    def on_switch(self, what: str, after: PolicySet, *, back: bool) -> None:
        version = 1 if self._latest is None else self._latest.version + 1
        rule = make_rule(replace(after, rolled_back=frozenset()), version)
        if fingerprint(after) != self._fingerprint:
            self._fingerprint, self._started = fingerprint(after), (version, self._run)
        self._latest = PolicyDecision(version, self._run, what, back, rule, *self._started)
        self._send(self._latest)

    def on_rollback(self, experiment: str, arm: str) -> None:
        self._send(ArmRolledBack(experiment, arm))

    def on_entry(self, entry: AuditEntry) -> None:
        self._entered += 1
        shared = AuditShared(self._entered, entry)
        self._entries.append(shared)
        self._send(shared)

    def report(self, message: Message) -> None:
        pass  # a `PolicyRule` does not say who asked

    @property
    def experiment_id(self) -> str | None:
        """Return the name of the running experiment at all routers; None without one. The same arms, ended and started
        again, are another one.
        """
        policy_set = self._control.policy_set
        if policy_set is not self._named:
            self._named, self._name = policy_set, fingerprint(policy_set)
        version, by = self._started
        return None if self._name is None else f"{self._name}@{version}{by}"

    # decided elsewhere

    def state(self) -> Iterator[Message]:
        """Yield what a router has to know that has just started, or has missed something."""
        for experiment, arm in self._control.rollbacks:
            yield ArmRolledBack(experiment, arm)
        if self._latest is not None:
            yield self._latest
        yield from self._entries

    def apply(self, message: Message, run: str) -> None:
        """Apply a message of the router with this run id; others than those of this module are ignored."""
        match message:
            case PolicyDecision():
                if self._latest is None or (message.version, message.by) > (self._latest.version, self._latest.by):
                    self._latest = message
                    self._wake.set()
            case ArmRolledBack():
                self._control.follow_rollback(message.experiment, message.arm)
            case AuditShared():
                if message.number > self._heard.get(run, 0):
                    self._heard[run] = message.number
                    entry = msgspec.structs.replace(message.entry, replica=run, number=message.number)
                    self._control.audit.add(entry)

    async def _follow(self) -> None:
        """Put the latest decision in force whenever it is another router's, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            decision = self._latest
            if decision is None or decision.by == self._run:
                continue
            log.info("replica %s: %s", decision.by, decision.what)
            build = partial(build_from_rule, decision.rule, registry=self._registry)
            await self._control.follow_replica(decision.what, build, partial(self._confirm, decision), decision.back)
            self._fingerprint = fingerprint(self._control.policy_set)

    def _confirm(self, decision: PolicyDecision) -> bool:
        """Return whether this is still the decision that counts, just before it is in force."""
        if self._latest is not decision:
            return False
        self._started = decision.started, decision.started_by
        return True
