"""What was rolled back stays so while the experiment is the same one, and only then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.control.summaries import fingerprint, summarize_policies
from router.control.switch import Rollbacks
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from router.telemetry.audit_log import AuditEntry
from tests.router.control.control_plane import TEXTS, experiment, spec

POLICIES = {name: build_policy(name, spec(text)) for name, text in TEXTS.items()}
RUNNING = PolicySet(POLICIES, "near", experiment(shadows=["other"]))


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (replace(RUNNING, active="other"), True),
        (replace(RUNNING, policies={**POLICIES, "other": POLICIES["far"]}), True),  # shadows only look on
        (RUNNING.with_rollback("far"), True),
        (replace(RUNNING, policies={**POLICIES, "far": POLICIES["other"]}), False),
        (replace(RUNNING, experiment=experiment(shadows=["other"], seed=2)), False),
        (replace(RUNNING, experiment=experiment(arms={"near": 60, "far": 40})), False),
        (replace(RUNNING, experiment=experiment(arms={"far": 50, "near": 50})), False),  # another one is first
    ],
)
def test_what_makes_an_experiment_the_same(other: PolicySet, same: bool) -> None:
    assert (fingerprint(other) == fingerprint(RUNNING)) is same


def test_arms_that_went_stay_out() -> None:
    rollbacks = Rollbacks()
    assert rollbacks.apply(RUNNING) is RUNNING
    rollbacks.add(fingerprint(RUNNING), "far")
    assert rollbacks.apply(RUNNING).rolled_back == {"far"}
    another = replace(RUNNING, experiment=experiment(seed=2))
    assert rollbacks.apply(another) is another
    none = PolicySet(POLICIES, "near")
    assert rollbacks.apply(none) is none


def test_without_the_first_arm_it_is_over() -> None:
    rollbacks = Rollbacks()
    rollbacks.add(fingerprint(RUNNING), "near")
    assert rollbacks.apply(RUNNING).experiment is None


def test_they_are_read_from_the_audit_log() -> None:
    def entry(what: str, arm: str | None) -> AuditEntry:
        return AuditEntry(
            0.0, "guard", what, summarize_policies(RUNNING), summarize_policies(RUNNING), None, "slow", arm
        )

    assert Rollbacks([entry("rollback", "far")]).apply(RUNNING).rolled_back == {"far"}
    assert Rollbacks([entry("alarm", "far")]).apply(RUNNING) is RUNNING  # only reported
