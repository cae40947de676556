"""The one way to change the policies in force: build, dry run on earlier requests, swap, write to the audit log.

Switches run one after the other, dry run included. Only rollbacks and decisions of other processes do not wait: a
dry run in progress is then repeated on the policies now in force, so no switch brings back an arm that was rolled
back meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from router.clock import Clock
from router.control.duty import Duty
from router.control.proposals import Proposal
from router.control.summaries import SwitchSummary, collect_notes, describe_experiment, fingerprint, summarize_policies
from router.scheduling.experiments.dry_run import DryRun, DryRunReport
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.experiments.results import Finding
from router.scheduling.scheduler import Scheduler
from router.telemetry.audit_log import AuditEntry, AuditLog, describe_changes
from router.telemetry.recent_records import RecentRecords

log = logging.getLogger("warmroute.control")

MAX_UNDO_STEPS = 20
DRY_RUN_RECORDS = 10_000
SLICE_S = 0.002  # of a dry run without a pause, too short to delay a first token noticeably

FILES, ADMIN, GUARD, REPLICAS = "files", "admin", "guard", "replicas"
ROLLBACK = "rollback"  # `what` of a rollback's audit entry
STAYS_OUT = "an arm was rolled back in this very experiment and stays so: with another seed it is another experiment"


async def no_other_workers() -> None:
    """Return at once: this process is the whole router."""


class SwitchRequest(NamedTuple):
    source: str
    who: str
    what: str
    dry_run: bool = False


class SwitchStep(NamedTuple):
    """A switch that can be undone."""

    what: str
    before: PolicySet


class DecisionVersion(NamedTuple):
    """Which decision among those of all peers is in force here: its version and the run id of its maker, and those of
    the decision that started its experiment.
    """

    version: int = 0  # 0: none
    by: str = ""
    started: int = 0
    started_by: str = ""


class SwitchListener(Protocol):
    """Receives the decisions of this process; `router/control/peers` publishes them."""

    @property
    def version(self) -> DecisionVersion:
        """The latest decision known here."""

    def on_switch(self, what: str, after: PolicySet, *, back: bool) -> None:
        """Handle a switch by somebody at this process that put `after` in force; `back` is true for an undo."""

    def on_rollback(self, experiment: str, arm: str) -> None:
        """Handle the rollback here of an arm of the experiment, or split of a model, with this fingerprint."""

    def on_entry(self, entry: AuditEntry) -> None:
        """Handle a new entry of this router in the audit log."""


class Rollbacks:
    """The arms rolled back so far, starting with those in the audit log's `entries`. They stay rolled back.

    While the experiment's fingerprint is the same, a rollback outlives a restart (through the audit file), an undo,
    and a file that is saved again. To retry an arm, change the `seed`, which makes another experiment.
    """

    def __init__(self, entries: Iterable[AuditEntry] = ()) -> None:
        self._arms: dict[str, frozenset[str]] = {}  # by fingerprint
        for entry in entries:
            if entry.what == ROLLBACK and entry.arm is not None and entry.before is not None:
                self.add(entry.before.experiment, entry.arm)

    def add(self, experiment: str | None, arm: str) -> None:
        """Roll back an arm of the experiment with this fingerprint; ignored if the fingerprint is None."""
        if experiment is not None:
            self._arms[experiment] = self._arms.get(experiment, frozenset()) | {arm}

    def __iter__(self) -> Iterator[tuple[str, str]]:
        """Iterate over fingerprints and arms."""
        return ((experiment, arm) for experiment, arms in self._arms.items() for arm in sorted(arms))

    def apply(self, policy_set: PolicySet) -> PolicySet:
        """Return `policy_set` without its rolled-back arms. An experiment without its first arm is over."""
        experiment = fingerprint(policy_set)
        arms = frozenset[str]() if experiment is None else self._arms.get(experiment, frozenset())
        if policy_set.first in arms:
            return replace(policy_set, experiment=None, rolled_back=frozenset())
        return policy_set if arms == policy_set.rolled_back else replace(policy_set, rolled_back=arms)


class PolicySwitch:
    """Changes the policies in force, starting with the policy set of `scheduler` minus the arms that the audit log
    lists as rolled back. Among the workers of a host, the one on `duty` counts and logs the switches of all; `duty`
    is None if this is the only process.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        recent_records: RecentRecords,
        audit: AuditLog,
        clock: Clock,
        duty: Duty | None = None,
    ) -> None:
        self.audit = audit
        self.switches: Counter[str] = Counter()  # by source
        self.undo: deque[SwitchStep] = deque(maxlen=MAX_UNDO_STEPS)
        self.ended: dict[str, Any] | None = None  # description of the last experiment when it ended
        self.wait_until_applied: Callable[[], Awaitable[None]] = no_other_workers
        self.listener: SwitchListener | None = None
        self.last: SwitchRequest | None = None  # what somebody decided here or at a peer; None: nothing, or a file did
        self.rollbacks = Rollbacks(reversed(audit.latest()))
        self._scheduler = scheduler
        self._recent_records = recent_records
        self._clock = clock
        self._duty = duty
        self._lock = asyncio.Lock()
        self._start_why: str | None = None
        self._apply_rollbacks()

    def restore(
        self, request: SwitchRequest | None, policy_set: PolicySet, rolled_back: Iterable[tuple[str, str]]
    ) -> bool:
        """Put `policy_set` in force, which `request` had put in force before this process started (None: nobody had
        switched), without the arms that were rolled back. Return whether it differs from the policies in force.
        """
        for experiment, arm in rolled_back:
            self.rollbacks.add(experiment, arm)
        before = self.policy_set
        differs = summarize_policies(policy_set) != summarize_policies(before) or policy_set.policies != before.policies
        if request is not None and differs:
            self.last, self._start_why = request, f"kept from before: {request.what} by {request.who}"
            self._scheduler.swap(policy_set)
        self._apply_rollbacks()
        return differs

    def _apply_rollbacks(self) -> None:
        """Put the policies in force at the start without their rolled-back arms."""
        after = self.rollbacks.apply(self.policy_set)
        if after is not self.policy_set:
            self._start_why = STAYS_OUT
            log.warning("experiment: %s: %s", ", ".join(sorted(after.rolled_back)) or "it is over", STAYS_OUT)
            self._scheduler.swap(after)

    def log_start(self) -> None:
        """Log the policies that this router starts with. Peers are not notified."""
        after = summarize_policies(self.policy_set)
        self.audit.add(AuditEntry(self._clock.wall(), FILES, "start", None, after, why=self._start_why))

    @property
    def policy_set(self) -> PolicySet:
        return self._scheduler.selector.policy_set

    async def switch(
        self, request: SwitchRequest, propose: Callable[[PolicySet], Proposal], *, back: bool = False
    ) -> SwitchSummary:
        """Put the result of `propose`, given the policies in force, in force. Raises what `propose` raises.

        `propose` may be called more than once, in a thread. `back`: remove the last undo step instead of adding
        one.
        """
        async with self._lock:
            while True:
                before = self.policy_set
                proposal = await asyncio.to_thread(propose, before)  # hundreds of policies take a while to build
                after = self.rollbacks.apply(proposal.policy_set)
                alike = summarize_policies(after) == summarize_policies(before)
                plan = None if alike else await self._dry_run(after)
                if self.policy_set is before:
                    break
            changed = not alike or after.policies != before.policies
            if not request.dry_run:
                if back:
                    self.undo.pop()
                if changed:
                    self._swap(after)
                    if not back:
                        self.undo.append(SwitchStep(request.what, before))
                    self.switches[request.source] += 1
                    if request.source != FILES:
                        self.last = request
                    if self.listener is not None:
                        self.listener.on_switch(request.what, after, back=back)
                    self._log_entry(request.who, request.what, before, plan=plan)
                    await self.wait_until_applied()
            notes = proposal.notes + collect_notes(before, proposal.policy_set, after, alike)
            return SwitchSummary(request.what, request.dry_run, changed, plan, notes, summarize_policies(after))

    def roll_back(self, finding: Finding) -> None:
        """Remove an arm from the experiment at once. If the guard found it and the guard's `action` is `report`,
        log an alarm instead.
        """
        before = self.policy_set
        if before.experiment is None or finding.arm not in before.live_arms:
            return
        if finding.cause == "guard" and before.experiment.guard.action == "report":
            log.warning("experiment: arm %s is too bad, kept (guard.action: report): %s", finding.arm, finding.why)
            self._log_entry(GUARD, "alarm", before, finding=finding)
            return
        log.warning("experiment: arm %s is rolled back: %s", finding.arm, finding.why)
        experiment = fingerprint(before)
        self.rollbacks.add(experiment, finding.arm)
        self._swap(self.rollbacks.apply(before))
        self.switches[GUARD] += 1
        if self.listener is not None and experiment is not None:
            self.listener.on_rollback(experiment, finding.arm)
        self._log_entry(GUARD, ROLLBACK, before, finding=finding)

    async def follow(
        self, what: str, build: Callable[[PolicySet], PolicySet], confirm: Callable[[], bool], *, back: bool, near: bool
    ) -> None:
        """Put a decision of another process in force, without a dry run, since that process has made one. `build`,
        called in a thread, makes the policies from those in force here. The decision is dropped if `confirm`,
        called just before the swap, returns False because a later decision counts. Raises what `build` raises.
        """
        while True:
            before = self.policy_set
            after = self.rollbacks.apply(await asyncio.to_thread(build, before))
            if self.policy_set is before:
                break
        if not confirm():
            return
        if summarize_policies(after) == summarize_policies(before) and after.policies == before.policies:
            return
        self._swap(after)
        self.last = SwitchRequest(REPLICAS, REPLICAS, what)
        if not back:
            self.undo.append(SwitchStep(what, before))
        elif self.undo:
            self.undo.pop()
        self._count_followed(near)

    def follow_rollback(self, experiment: str, arm: str, *, near: bool) -> None:
        """Remove an arm that was rolled back at another process. If another experiment runs now, the arm is removed
        as soon as its own experiment is back.
        """
        self.rollbacks.add(experiment, arm)
        if (after := self.rollbacks.apply(self.policy_set)) is not self.policy_set:
            log.warning("experiment: arm %s was rolled back at another process", arm)
            self._swap(after)
            self._count_followed(near)

    def _count_followed(self, near: bool) -> None:
        """Count a decision of another host once for all workers; a worker of this host has counted its own
        decisions.
        """
        self.switches[REPLICAS] += not near and self._is_on_duty()

    def _is_on_duty(self) -> bool:
        return self._duty is None or self._duty.held

    async def _dry_run(self, after: PolicySet) -> DryRunReport:
        """Decide earlier requests again, in slices between which the event loop serves requests."""
        dry_run = DryRun(after)
        until = self._clock.now() + SLICE_S
        for record in reversed(self._recent_records.latest(DRY_RUN_RECORDS)):  # oldest first, so that sessions evolve
            dry_run.add(record)
            if self._clock.now() >= until:
                await asyncio.sleep(0)
                until = self._clock.now() + SLICE_S
        return dry_run.report()

    def _swap(self, after: PolicySet) -> None:
        before, experiment, shadows = self.policy_set, self._scheduler.experiment, self._scheduler.selector.shadows
        self._scheduler.swap(after)
        if experiment is not None and self._scheduler.experiment is not experiment:
            description = describe_experiment(before, experiment, shadows) or {}
            self.ended = {**description, "ended_at_wall_s": self._clock.wall()}

    def _log_entry(
        self,
        who: str,
        what: str,
        before: PolicySet,
        *,
        plan: DryRunReport | None = None,
        finding: Finding | None = None,
    ) -> None:
        """Log the change from `before` to the policies in force."""
        was, now = summarize_policies(before), summarize_policies(self.policy_set)
        sentences = None if plan is None else plan.lines()
        why, arm = (None, None) if finding is None else (finding.why, finding.arm)
        changes = describe_changes(was, now)
        entry = AuditEntry(self._clock.wall(), who, what, was, now, sentences, why, arm, changes=changes)
        self.audit.add(entry)
        if self.listener is not None:
            self.listener.on_entry(entry)
