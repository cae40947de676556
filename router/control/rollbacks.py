"""Which arms were rolled back, for good: an experiment that went wrong does not start over by being read again.

An experiment is known by its fingerprint: its section, and what its arms' policies say. While these are the same, what
was rolled back stays so, over a restart (from the audit file), an undo, and a file that is saved again. Another seed is
another experiment: that is how to try again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from hashlib import blake2b

from router.scheduling.experiments.policy_set import PolicySet
from router.telemetry.audit_log import AuditEntry, PoliciesInForce

ROLLBACK = "rollback"
"""What an entry is called that takes an arm out."""


class Rollbacks:
    def __init__(self, entries: Iterable[AuditEntry] = ()) -> None:
        self._arms: dict[str, frozenset[str]] = {}  # by fingerprint
        for entry in entries:
            if entry.what == ROLLBACK and entry.arm is not None and entry.before is not None:
                self._add(entry.before.experiment, entry.arm)

    def add(self, regime: PolicySet, arm: str) -> None:
        """An arm of the experiment that `regime` has."""
        self._add(fingerprint(regime), arm)

    def _add(self, name: str | None, arm: str) -> None:
        if name is not None:
            self._arms[name] = self._arms.get(name, frozenset()) | {arm}

    def apply(self, regime: PolicySet) -> PolicySet:
        """The same with what was rolled back before. Without its first arm, an experiment is over."""
        name = fingerprint(regime)
        arms = frozenset[str]() if name is None else self._arms.get(name, frozenset())
        if regime.first in arms:
            return replace(regime, experiment=None, rolled_back=frozenset())
        return regime if arms == regime.rolled_back else replace(regime, rolled_back=arms)


def fingerprint(regime: PolicySet) -> str | None:
    """None: there is no experiment."""
    if regime.experiment is None:
        return None
    text = "\0".join((regime.experiment.model_dump_json(), *regime.arm_digests))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def summarize_policies(regime: PolicySet) -> PoliciesInForce:
    """A regime as the audit log has it."""
    return PoliciesInForce(
        active=regime.active,
        policies={policy.name: policy.digest for policy in regime.in_use},
        experiment=fingerprint(regime),
        arms={} if regime.experiment is None else dict(regime.experiment.arms),
        rolled_back=sorted(regime.rolled_back),
    )
