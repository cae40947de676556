"""The guard of model splits: a bad arm loses its share, and the audit log keeps that over a restart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from router.clock import ManualClock
from router.config.sections.models import AliasConfig
from router.control.splits import SplitGuard
from router.scheduling.experiments.model_split import ModelSplit
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import fallback_policy
from router.telemetry.audit_log import AuditLog
from tests.router.scheduling.experiments.traffic import a_record, finish

ARMS = {"stable": {"model": "llama", "share": 50}, "canary": {"model": "qwen", "share": 50}}
POLICIES = PolicySet({"p": fallback_policy()}, "p")


def a_split(**experiment: Any) -> ModelSplit:
    settings = {"observe_s": 1.0, "guard": {"metric": "error_rate", "min_units": 10, "alpha": 0.05}} | experiment
    return ModelSplit("chat", AliasConfig.model_validate({"split": ARMS, "experiment": settings}))


def guard(split: ModelSplit, audit: AuditLog, clock: ManualClock) -> SplitGuard:
    return SplitGuard([split], audit, clock, lambda: POLICIES)


def send(split: ModelSplit, sound: SplitGuard, clock: ManualClock, bad: str, requests: int = 400) -> None:
    """Requests of a unit each, of which those on the arm `bad` fail."""
    for number in range(requests):
        unit = b"%d" % number
        arm, drawn = split.assign(unit)
        record = a_record(number, clock.now())
        if drawn:
            split.begin(arm, unit, record)
        clock.advance(2.0)
        split.end(finish(record, status=500 if arm == bad else 200))
        sound.check()


def test_an_arm_that_fails_loses_its_share_and_stays_out_after_a_restart(tmp_path: Path) -> None:
    clock, split, audit = ManualClock(), a_split(), AuditLog()
    send(split, guard(split, audit, clock), clock, "canary")
    assert split.rolled_back == {"canary"}
    assert {split.assign(b"%d" % n).arm for n in range(100)} == {"stable"}
    (entry,) = audit.latest()
    assert (entry.who, entry.what, entry.arm) == ("guard", "rollback of model chat", "canary")
    assert "error_rate: 100.0% against 0.0% of stable" in (entry.why or "")

    again = a_split()
    guard(again, audit, clock)
    assert again.rolled_back == {"canary"}
    other = a_split(seed=1)
    guard(other, audit, clock)
    assert not other.rolled_back, "another seed is another split"


def test_a_guard_that_only_reports_takes_nothing_away() -> None:
    clock, audit = ManualClock(), AuditLog()
    split = a_split(guard={"metric": "error_rate", "min_units": 10, "alpha": 0.05, "action": "report"})
    send(split, guard(split, audit, clock), clock, "canary")
    assert not split.rolled_back
    assert [entry.what for entry in audit.latest()] == ["alarm of model chat"]


def test_the_first_arm_stays_whatever_happens() -> None:
    clock, audit = ManualClock(), AuditLog()
    split = a_split(limits={"error_rate_max": 0.1})
    send(split, guard(split, audit, clock), clock, "stable")
    assert not split.rolled_back
    assert [(entry.what, entry.arm) for entry in audit.latest()] == [("alarm of model chat", "stable")]


def test_a_split_is_described_like_an_experiment() -> None:
    clock, split = ManualClock(), a_split()
    described = guard(split, AuditLog(), clock).describe()["chat"]
    assert [arm["model"] for arm in described["report"]["arms"]] == ["llama", "qwen"]
    assert described["experiment"]["arms"] == {"stable": 50.0, "canary": 50.0}
    assert described["sentences"][0].startswith("stable: 50% of the units")
