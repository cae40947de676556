"""The one way from what is in force to something else: build, plan on earlier requests, swap, write down.

Switches come one after the other, planning included. Only a rollback waits for nobody: a plan that was under way is
then made again, on what is there now, so no switch ever puts back an arm that went meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from router.clock import Clock
from router.control.proposals import Proposal
from router.control.rollbacks import ROLLBACK, Rollbacks, summarize_policies
from router.control.summaries import SwitchSummary, collect_notes, describe_experiment
from router.scheduling.experiments.dry_run import DryRun, DryRunReport
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.experiments.results import Finding
from router.scheduling.scheduler import Scheduler
from router.telemetry.audit_log import AuditEntry, AuditLog
from router.telemetry.recent_records import RecentRecords

log = logging.getLogger("warmroute.control")

UNDOS = 20
PLANNED = 10_000  # records that a plan looks at
SLICE_S = 0.002  # of planning without a pause: nobody's first token should feel it

FILES, ADMIN, GUARD = "files", "admin", "guard"
STAYS_OUT = "an arm was rolled back in this very experiment and stays so: with another seed it is another experiment"


async def nowhere_else() -> None:
    """This process is the whole router."""


class SwitchRequest(NamedTuple):
    source: str
    who: str
    what: str
    dry_run: bool = False


class SwitchStep(NamedTuple):
    """A switch that can be undone."""

    what: str
    before: PolicySet


class PolicySwitch:
    """Begins with the regime that the core was built with, less what was rolled back in it before."""

    def __init__(self, core: Scheduler, ring: RecentRecords, audit: AuditLog, clock: Clock) -> None:
        self.audit = audit
        self.switches: Counter[str] = Counter()  # by source
        self.undo: deque[SwitchStep] = deque(maxlen=UNDOS)
        self.ended: dict[str, Any] | None = None  # what the last experiment came to
        self.everywhere: Callable[[], Awaitable[None]] = nowhere_else
        self._core = core
        self._ring = ring
        self._clock = clock
        self._lock = asyncio.Lock()
        self._rollbacks = Rollbacks(reversed(audit.latest()))
        after = self._rollbacks.apply(self.regime)
        why = None
        if after is not self.regime:
            why = STAYS_OUT
            log.warning("experiment: %s: %s", ", ".join(sorted(after.rolled_back)) or "it is over", why)
            core.swap(after)
        self._note(FILES, "start", None, after, why=why)

    @property
    def regime(self) -> PolicySet:
        return self._core.selector.policy_set

    async def switch(
        self, asked: SwitchRequest, make: Callable[[PolicySet], Proposal], *, back: bool = False
    ) -> SwitchSummary:
        """`make` says what follows from what is in force, and may be asked again; `back`: the last step is undone."""
        async with self._lock:
            while True:
                before = self.regime
                proposal = make(before)
                after = self._rollbacks.apply(proposal.policy_set)
                alike = summarize_policies(after) == summarize_policies(before)
                plan = None if alike else await self._planned(after)
                if self.regime is before:
                    break
            changed = not alike or after.policies != before.policies
            if not asked.dry_run:
                if back:
                    self.undo.pop()
                if changed:
                    self._take(after)
                    self._write(asked, before, after, plan, back)
                    await self.everywhere()
            notes = proposal.notes + collect_notes(before, proposal.policy_set, after, alike)
            return SwitchSummary(asked.what, asked.dry_run, changed, plan, notes, summarize_policies(after))

    def _write(
        self, asked: SwitchRequest, before: PolicySet, after: PolicySet, plan: DryRunReport | None, back: bool
    ) -> None:
        if not back:
            self.undo.append(SwitchStep(asked.what, before))
        self.switches[asked.source] += 1
        self._note(asked.who, asked.what, before, after, plan=plan)

    def roll_back(self, finding: Finding) -> None:
        """An arm is too bad: it goes, now. Without its first arm, an experiment is over."""
        before = self.regime
        if before.experiment is None or finding.arm not in before.live_arms:
            return
        if finding.cause == "guard" and before.experiment.guard.action == "report":
            log.warning("experiment: %s is too bad, and stays: %s", finding.arm, finding.why)
            self._note(GUARD, "alarm", before, before, why=finding.why, arm=finding.arm)
            return
        log.warning("experiment: %s is rolled back: %s", finding.arm, finding.why)
        self._rollbacks.add(before, finding.arm)
        self._take(self._rollbacks.apply(before))
        self.switches[GUARD] += 1
        self._note(GUARD, ROLLBACK, before, self.regime, why=finding.why, arm=finding.arm)

    async def _planned(self, after: PolicySet) -> DryRunReport:
        """In slices: the loop serves everybody else in between."""
        planner = DryRun(after)
        until = self._clock.now() + SLICE_S
        for record in reversed(self._ring.latest(PLANNED)):  # oldest first: sessions go on from where they would be
            planner.add(record)
            if self._clock.now() >= until:
                await asyncio.sleep(0)
                until = self._clock.now() + SLICE_S
        return planner.report()

    def _take(self, after: PolicySet) -> None:
        before, trial, shadows = self.regime, self._core.experiment, self._core.selector.shadows
        self._core.swap(after)
        if trial is not None and self._core.experiment is not trial:
            self.ended = {**(describe_experiment(before, trial, shadows) or {}), "ended_at_wall_s": self._clock.wall()}

    def _note(
        self,
        who: str,
        what: str,
        before: PolicySet | None,
        after: PolicySet,
        *,
        plan: DryRunReport | None = None,
        why: str | None = None,
        arm: str | None = None,
    ) -> None:
        was = None if before is None else summarize_policies(before)
        foreseen = None if plan is None else plan.lines()
        self.audit.add(AuditEntry(self._clock.wall(), who, what, was, summarize_policies(after), foreseen, why, arm))
