"""Descriptions for the operator: what a switch changed, which policies are in force, how an experiment stands.

The descriptions are plain JSON types, with sentences beside the figures. Infinity is written as text, since JSON
has no number for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from math import isinf
from typing import Any, NamedTuple

import msgspec

from router.scheduling.experiments.dry_run import DryRunReport
from router.scheduling.experiments.experiment import RunningExperiment
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.experiments.results import ArmReport, ExperimentReport, MetricResult
from router.scheduling.experiments.shadow import Shadow
from router.scheduling.policy.record_view import to_plain
from router.telemetry.audit_log import PoliciesInForce

INFINITE = "infinite"


class SwitchSummary(NamedTuple):
    """The outcome of a switch, or of its dry run."""

    what: str
    dry_run: bool
    changed: bool  # False: the policies were in force already
    plan: DryRunReport | None  # None: no choice can change
    notes: tuple[str, ...]
    in_force: PoliciesInForce  # after the switch

    def describe(self) -> dict[str, Any]:
        plan = None
        if self.plan is not None:
            plan = {"sentences": self.plan.lines(), **msgspec.to_builtins(self.plan)}
        in_force = msgspec.to_builtins(self.in_force)
        return {**self._asdict(), "plan": plan, "notes": list(self.notes), "in_force": in_force}


def collect_notes(before: PolicySet, proposed: PolicySet, after: PolicySet, alike: bool) -> tuple[str, ...]:
    """Return notes on a switch. `after` is `proposed` without arms rolled back earlier; `alike` is true if no
    choice changes.
    """
    notes = []
    if alike:
        news = after.policies != before.policies
        notes.append("no policy in use changes, so no choice does" if news else "nothing changes: it is so already")
    if fingerprint(proposed) not in (None, fingerprint(before)):
        gone = sorted(after.rolled_back) if after.experiment is not None else [str(proposed.first)]
        if gone:
            rollback = f"{', '.join(gone)} was rolled back in this very experiment and stays so"
            notes.append(f"{rollback}: with another seed it is another experiment")
        if after.experiment is not None:
            notes.append("the experiment starts now, without results from before")
    return tuple(notes)


def fingerprint(policy_set: PolicySet) -> str | None:
    """Return a hash of the experiment's section and its arms' policies, which identifies the experiment; None if
    there is no experiment.
    """
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
        arms={} if policy_set.experiment is None else policy_set.experiment.shares,
        rolled_back=sorted(policy_set.rolled_back),
        admission=policy_set.admission.model_dump(mode="json", exclude_defaults=True),
    )


def describe_policies(policy_set: PolicySet) -> dict[str, Any]:
    """Describe all policies and the role of each: active, arm, shadow, or None."""
    experiment = policy_set.experiment
    roles = dict.fromkeys(() if experiment is None else experiment.shadows, "shadow")
    roles |= dict.fromkeys(() if experiment is None else experiment.policies.values(), "arm")
    active = policy_set.active
    roles[active] = "active" if active not in roles else f"active, {roles[active]}"
    return {
        "active": active,
        "names": sorted(policy_set.policies),
        "needs": [str(need.name) for need in policy_set.needs],
        "policies": [
            {"name": name, "digest": policy.digest, "role": roles.get(name)}
            for name, policy in sorted(policy_set.policies.items())
        ],
        "experiment": fingerprint(policy_set),
        "arms": {} if experiment is None else experiment.shares,
        "rolled_back": sorted(policy_set.rolled_back),
    }


def describe_experiment(
    policy_set: PolicySet, running: RunningExperiment | None, shadows: Sequence[Shadow]
) -> dict[str, Any] | None:
    """Describe the running experiment; None if none runs."""
    if policy_set.experiment is None or running is None:
        return None
    report = running.report()
    return {
        "fingerprint": fingerprint(policy_set),
        "experiment": policy_set.experiment.model_dump(mode="json"),
        "rolled_back": sorted(policy_set.rolled_back),
        **describe_report(report),
        "shadows": [_describe_shadow(shadow) for shadow in shadows],
    }


def describe_report(report: ExperimentReport) -> dict[str, Any]:
    """Describe an experiment's results, in figures and in sentences."""
    return {"report": replace_infinities(to_plain(report)), "sentences": list(describe_standings(report))}


def _describe_shadow(shadow: Shadow) -> dict[str, Any]:
    summary = shadow.regret.summary()
    figures: dict[str, Any] = replace_infinities(to_plain(summary._replace(moves={})))
    del figures["moves"]  # one number per pair of targets
    names = {"policy": shadow.policy.name, "digest": shadow.policy.digest}
    return {**names, "out": shadow.fault, "agreement": summary.agreement, **figures}


def replace_infinities(value: Any) -> Any:
    """Return `value`, of JSON types, with infinite numbers as text."""
    if isinstance(value, dict):
        return {key: replace_infinities(item) for key, item in value.items()}
    if isinstance(value, list):
        return [replace_infinities(item) for item in value]
    return INFINITE if isinstance(value, float) and isinf(value) else value


def describe_standings(report: ExperimentReport) -> Iterator[str]:
    """Yield one sentence per fact about the arms, without a full stop."""
    first = report.arms[0]
    for arm in report.arms:
        yield (
            f"{arm.arm}: {arm.share:g}% of the units; {arm.units_closed:,} are over and {arm.units_open:,} are not, "
            f"with {arm.requests:,} requests of which {arm.failed:,} failed"
        )
        if arm.out is not None:
            yield f"{arm.arm} is out: {arm.out}"
    for arm in report.arms[1:]:
        yield from _compare(arm, first)
    yield from report.warnings


def _compare(arm: ArmReport, first: ArmReport) -> Iterator[str]:
    for mine, theirs in zip(arm.standings, first.standings, strict=True):
        if mine.estimate is None or theirs.estimate is None:
            continue
        lead = f"{arm.arm}: {mine.metric} {format_result(mine)}"
        yield f"{lead}, {first.arm} {format_result(theirs)}: {describe_verdict(mine)}"


def format_result(standing: MetricResult) -> str:
    """Format estimate and confidence interval: `210 ms (190 to 240)`."""
    values = [format_value(value, standing.metric) for value in (standing.estimate, standing.low, standing.high)]
    return f"{values[0]} ({values[1]} to {values[2]})"


def format_value(value: float | None, metric: str) -> str:
    if value is None:
        return "unknown"
    if metric in ("hit_share", "error_rate"):
        return f"{value:.1%}"
    if metric == "output_p50":
        return "any" if isinf(value) else f"{value:,.0f} tokens"
    return "no answer" if isinf(value) else f"{value:,.0f} ms"


def describe_verdict(standing: MetricResult) -> str:
    if standing.verdict != "not yet known":
        return str(standing.verdict)
    if standing.requests_needed is None:
        return "not yet known"
    return f"not yet known; about {standing.requests_needed:,} more requests would tell, if it goes on like this"
