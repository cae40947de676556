"""What decides, as metrics: policies in force, switches, an experiment's units, shadows, and the decision log of it
all.

Like `state.py` taken from a snapshot when scraped. Names of policies are a closed set: whoever may add one may also
read this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from router.scheduling.experiments.regret import ChoiceComparison

ROLES = ("active", "arm", "shadow")


class PolicyInForce(NamedTuple):
    role: str  # one of ROLES
    policy: str
    digest: str  # of what it says


class ArmUnits(NamedTuple):
    arm: str
    units: int  # counted so far
    rolled_back: bool


class DecisionLogState(NamedTuple):
    written: int
    dropped: int
    bytes: int
    failures: int


class PolicyState(NamedTuple):
    """What the operator's line did and what it led to."""

    in_force: Sequence[PolicyInForce] = ()
    switches: Mapping[str, int] = {}  # by source: files, admin, guard
    refusals: Mapping[str, int] = {}  # by where what could not be read or built came from
    arms: Sequence[ArmUnits] = ()
    shadows: Mapping[str, tuple[ChoiceComparison, bool]] = {}  # by policy; whether it is out
    decision_log: DecisionLogState | None = None
    audit_failures: int | None = None  # writes of the audit log that failed; None: there is none


def steering_families(now: PolicyState) -> Iterator[Metric]:
    yield from _policies(now)
    yield from _arms(now.arms)
    yield from _shadows(now.shadows)
    yield from _decision_log(now.decision_log)
    audit = CounterMetricFamily("warmroute_audit_failures_total", "writes of the audit log that failed")
    if now.audit_failures is not None:
        audit.add_metric((), now.audit_failures)
    yield audit


def _policies(now: PolicyState) -> Iterator[Metric]:
    in_force = GaugeMetricFamily(
        "warmroute_policy_in_force", "1 for each policy that decides or looks on", labels=("role", "policy", "digest")
    )
    for one in now.in_force:
        in_force.add_metric(one, 1)
    switches = CounterMetricFamily(
        "warmroute_policy_switches_total", "switches, by who asked for them", labels=("source",)
    )
    for source, count in now.switches.items():
        switches.add_metric((source,), count)
    refusals = CounterMetricFamily(
        "warmroute_policy_refusals_total", "policies and experiments that were not taken, by source", labels=("source",)
    )
    for source, count in now.refusals.items():
        refusals.add_metric((source,), count)
    yield from (in_force, switches, refusals)


def _arms(arms: Sequence[ArmUnits]) -> Iterator[Metric]:
    units = GaugeMetricFamily("warmroute_arm_units", "units that count in the experiment so far", labels=("arm",))
    out = GaugeMetricFamily("warmroute_arm_rolled_back", "1 for an arm that was rolled back", labels=("arm",))
    for arm in arms:
        units.add_metric((arm.arm,), arm.units)
        out.add_metric((arm.arm,), arm.rolled_back)
    yield from (units, out)


def _shadows(shadows: Mapping[str, tuple[ChoiceComparison, bool]]) -> Iterator[Metric]:
    label = ("policy",)
    looked = CounterMetricFamily("warmroute_shadow_decisions_total", "decisions that a shadow looked at", labels=label)
    agreed = CounterMetricFamily(
        "warmroute_shadow_agreements_total", "of those, where it would have chosen the same target", labels=label
    )
    ttft = GaugeMetricFamily(
        "warmroute_shadow_ttft_regret_seconds",
        "predicted time to first token of a shadow's choices minus that of the choices made, mean",
        labels=label,
    )
    overlap = GaugeMetricFamily(
        "warmroute_shadow_overlap_regret_tokens",
        "prompt tokens held where the choices were made minus those where the shadow would have gone, mean",
        labels=label,
    )
    spread = GaugeMetricFamily(
        "warmroute_shadow_load_spread", "requests of the busiest target over the mean, by its choices", labels=label
    )
    out = GaugeMetricFamily("warmroute_shadow_out", "1 for a shadow that broke and looks on no more", labels=label)
    for policy, (summary, is_out) in shadows.items():
        looked.add_metric((policy,), summary.decisions)
        agreed.add_metric((policy,), summary.agreed)
        if summary.ttft_ms is not None:
            ttft.add_metric((policy,), summary.ttft_ms / 1000)
        if summary.overlap_tokens is not None:
            overlap.add_metric((policy,), -summary.overlap_tokens)
        if summary.uneven_other is not None:
            spread.add_metric((policy,), summary.uneven_other)
        out.add_metric((policy,), is_out)
    yield from (looked, agreed, ttft, overlap, spread, out)


def _decision_log(decision_log: DecisionLogState | None) -> Iterator[Metric]:
    written = CounterMetricFamily("warmroute_decision_log_records_total", "records written to the ledger")
    dropped = CounterMetricFamily("warmroute_decision_log_dropped_total", "records dropped because its queue was full")
    size = CounterMetricFamily("warmroute_decision_log_bytes_total", "bytes written to it, before compression")
    failures = CounterMetricFamily("warmroute_decision_log_failures_total", "writes that failed")
    if decision_log is not None:
        for family, value in zip((written, dropped, size, failures), decision_log, strict=True):
            family.add_metric((), value)
    yield from (written, dropped, size, failures)
