"""Arms that were rolled back stay so: an experiment that went wrong does not start again when its file is read again.

An experiment is identified by a fingerprint of its section and the texts of its arms' policies. As long as these are
equal, a rollback outlives a restart (through the audit file), an undo, and a file that is saved again. Another `seed`
makes another experiment, which is how to try again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

from router.scheduling.experiments.policy_set import PolicySet
from router.telemetry.audit_log import AuditEntry, PoliciesInForce

ROLLBACK = "rollback"
"""`what` of the audit entry of a rollback."""


class Rollbacks:
    """The arms rolled back so far, starting with those in the audit log's `entries`."""

    def __init__(self, entries: Iterable[AuditEntry] = ()) -> None:
        self._arms: dict[str, frozenset[str]] = {}  # by fingerprint
        for entry in entries:
            if entry.what == ROLLBACK and entry.arm is not None and entry.before is not None:
                self._add(entry.before.experiment, entry.arm)

    def add(self, policy_set: PolicySet, arm: str) -> None:
        """Roll back an arm of the experiment in `policy_set`."""
        self._add(fingerprint(policy_set), arm)

    def _add(self, experiment: str | None, arm: str) -> None:
        if experiment is not None:
            self._arms[experiment] = self._arms.get(experiment, frozenset()) | {arm}

    def apply(self, policy_set: PolicySet) -> PolicySet:
        """Return `policy_set` without its rolled-back arms. An experiment without its first arm is over."""
        experiment = fingerprint(policy_set)
        arms = frozenset[str]() if experiment is None else self._arms.get(experiment, frozenset())
        if policy_set.first in arms:
            return replace(policy_set, experiment=None, rolled_back=frozenset())
        return policy_set if arms == policy_set.rolled_back else replace(policy_set, rolled_back=arms)


def fingerprint(policy_set: PolicySet) -> str | None:
    """Return the fingerprint of the experiment; None when there is none."""
    if policy_set.experiment is None:
        return None
    text = "\0".join((policy_set.experiment.model_dump_json(), *policy_set.arm_digests))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def summarize_policies(policy_set: PolicySet) -> PoliciesInForce:
    """Return `policy_set` in the form of the audit log."""
    return PoliciesInForce(
        active=policy_set.active,
        policies={policy.name: policy.digest for policy in policy_set.in_use},
        experiment=fingerprint(policy_set),
        arms={} if policy_set.experiment is None else dict(policy_set.experiment.arms),
        rolled_back=sorted(policy_set.rolled_back),
    )
