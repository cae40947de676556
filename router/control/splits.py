"""Guards the splits of models: takes away the share of an arm that the guard or a limit finds too bad.

This module does for splits what `switch.py` does for policies. A rollback is in the audit log, and with an
`admin.audit_file` it outlives a restart for as long as the split's settings are the same: another `seed` makes
another split. If several processes have the split, each of them may find an arm too bad; an arm that one process
has rolled back is out at all processes, and stays out.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from router.clock import Clock
from router.control.summaries import describe_report, summarize_policies
from router.control.switch import GUARD, SwitchListener
from router.scheduling.experiments.experiment import CLOSES_AT_ONCE
from router.scheduling.experiments.model_split import ModelSplit
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.experiments.results import Finding
from router.telemetry.audit_log import AuditEntry, AuditLog

log = logging.getLogger("warmroute.control")


class SplitGuard:
    """Guards `splits`, minus the arms that the audit log lists as rolled back. `policy_set` returns the policies in
    force, which every entry of the log contains.
    """

    def __init__(
        self, splits: Sequence[ModelSplit], audit: AuditLog, clock: Clock, policy_set: Callable[[], PolicySet]
    ) -> None:
        self.splits = splits
        self._audit = audit
        self._clock = clock
        self._policy_set = policy_set
        self.listener: SwitchListener | None = None
        by_fingerprint = {split.fingerprint: split for split in splits}
        for entry in reversed(audit.latest()):
            split = None if entry.split is None else by_fingerprint.get(entry.split)
            if split is not None and entry.arm is not None and entry.what.startswith("rollback") and entry.who == GUARD:
                split.roll_back(entry.arm)
                log.warning("model %s: arm %s was rolled back in this split and stays out", split.name, entry.arm)

    @property
    def rollbacks(self) -> Iterator[tuple[str, str]]:
        """Iterate over the arms that were rolled back, each after the fingerprint of its split."""
        return ((split.fingerprint, arm) for split in self.splits for arm in sorted(split.rolled_back))

    def follow_rollback(self, fingerprint: str, arm: str) -> None:
        """Remove an arm that was rolled back at another process; ignored if no split here has the fingerprint."""
        for split in self.splits:
            if split.fingerprint == fingerprint and split.roll_back(arm):
                log.warning("model %s: arm %s was rolled back at another process", split.name, arm)

    def check(self) -> bool:
        """Check every split once, for about 10 ms each at most. Return whether units are left to check."""
        backlog = False
        for split in self.splits:
            before = split.experiment.open_units
            for finding in split.experiment.poll(self._clock.now()):
                self._handle(split, finding)
            backlog |= before - split.experiment.open_units >= CLOSES_AT_ONCE
        return backlog

    def describe(self) -> dict[str, Any]:
        """Describe the splits by alias, in the form of an experiment."""
        return {
            split.name: {
                "fingerprint": split.fingerprint,
                "experiment": split.spec.model_dump(mode="json"),
                "rolled_back": sorted(split.rolled_back),
                "shadows": [],
                **describe_report(split.experiment.report()),
            }
            for split in self.splits
        }

    def _handle(self, split: ModelSplit, finding: Finding) -> None:
        """Roll back an arm. Log an alarm instead for the first arm, and if the guard found it and its `action` is
        `report`.
        """
        keeps = finding.cause == "guard" and split.spec.guard.action == "report"
        if keeps or not split.roll_back(finding.arm):
            log.warning("model %s: arm %s is too bad, kept: %s", split.name, finding.arm, finding.why)
            self._log_entry(split, f"alarm of model {split.name}", finding)
        else:
            log.warning("model %s: arm %s is rolled back: %s", split.name, finding.arm, finding.why)
            if self.listener is not None:
                self.listener.on_rollback(split.fingerprint, finding.arm)
            self._log_entry(split, f"rollback of model {split.name}", finding)

    def _log_entry(self, split: ModelSplit, what: str, finding: Finding) -> None:
        now = summarize_policies(self._policy_set())
        wall_s = self._clock.wall()
        entry = AuditEntry(wall_s, GUARD, what, now, now, why=finding.why, arm=finding.arm, split=split.fingerprint)
        self._audit.add(entry)
        if self.listener is not None:
            self.listener.on_entry(entry)
