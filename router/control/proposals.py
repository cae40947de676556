"""The policies that a change would put in force, built and checked as a whole before anything is touched.

A policy whose text did not change stays the same object, and a policy whose text did change keeps its unchanged
plug-ins (`router/scheduling/policy/policy.py`), so nothing learned is lost. Every function here raises
`ConfigError` with all the problems it found.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from router.config import schema
from router.config.reader import check_experiment_policies, read_main
from router.config.sections.admission import AdmissionConfig
from router.config.sections.experiment import ExperimentConfig
from router.config.validation_errors import describe_unknown
from router.config.yaml_source import format_path
from router.errors import ConfigError, quote_name
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.admission_rules import build_rule, check_arm_rules
from router.scheduling.policy.policy import Policy, build_policy
from scorers.registry import Registry

LIVE_KEYS = frozenset({"active", "admission", "experiment", "policies", "policies_dir"})
"""Keys of the main file whose changes take effect without a restart, as do changes of files in `policies_dir`."""

POLICY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Proposal(NamedTuple):
    policy_set: PolicySet
    notes: tuple[str, ...] = ()  # further consequences of the change, as sentences for the operator


class FileSettings(NamedTuple):
    """The live part of the configuration files, as last read without an error."""

    active: str
    experiment: ExperimentConfig | None
    policies: Mapping[str, schema.PolicyConfig]
    admission: AdmissionConfig = AdmissionConfig()


class PolicyFiles(NamedTuple):
    settings: FileSettings
    folder: Path | None  # of policies
    rest: dict[str, Any]  # settings that take effect only after a restart, as plain data


def extract_settings(policy_set: PolicySet) -> FileSettings:
    """Return the settings from which `policy_set` was built."""
    policies = {name: policy.spec for name, policy in policy_set.policies.items() if policy.spec is not None}
    return FileSettings(policy_set.active, policy_set.experiment, policies, policy_set.admission)


def read_files(file: Path) -> PolicyFiles:
    """Read the main file and all policies strictly. Takes milliseconds, so call it in a thread. Raises ConfigError."""
    config, policies = read_main(file)
    folder = None if config.policies_dir is None else Path(config.policies_dir)
    rest = config.model_dump(mode="json", exclude=set(LIVE_KEYS))
    return PolicyFiles(FileSettings(config.active, config.experiment, policies, config.admission), folder, rest)


def find_restart_keys(first: PolicyFiles, now: PolicyFiles) -> list[str]:
    """Return the keys, such as `limits.grace_s`, that differ from `first` and need a restart to take effect."""
    return list(_find_differences(first.rest, now.rest, ""))


def _find_differences(one: Mapping[str, Any], other: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key in dict.fromkeys((*one, *other)):
        before, after = one.get(key), other.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _find_differences(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}"


def propose_policies(
    before: PolicySet, specs: Mapping[str, schema.PolicyConfig], registry: Registry, active: str | None = None
) -> Proposal:
    """Add the policies in `specs`, replacing those of the same name, and activate `active` unless it is None."""
    changed = build_changed(before.policies, specs, registry)
    after = build_policy_set(changed, before.active, before.experiment, before.admission)
    notes = tuple(f"{name} is in memory only: no file was written" for name in specs)
    if active is None:
        return Proposal(after, notes)
    activation = propose_activation(after, active)
    return Proposal(activation.policy_set, notes + activation.notes)


def propose_activation(before: PolicySet, name: str) -> Proposal:
    """Make policy `name` decide for every request, which ends a running experiment."""
    notes = ("the running experiment ends",) if before.experiment is not None else ()
    return Proposal(build_policy_set(before.policies, name, None, before.admission), notes)


def propose_experiment(
    before: PolicySet, experiment: ExperimentConfig, shipped: Mapping[str, schema.PolicyConfig], registry: Registry
) -> Proposal:
    """Start `experiment`, replacing a running one. Policies in `shipped` are added unless their names are taken."""
    added = {name: spec for name, spec in shipped.items() if name not in before.policies}
    policies = build_changed(before.policies, added, registry)
    notes: tuple[str, ...] = ()
    if before.experiment is not None and before.experiment != experiment:
        notes = ("it takes the place of the running experiment, which ends",)
    return Proposal(build_policy_set(policies, before.active, experiment, before.admission), notes)


def propose_end(before: PolicySet) -> Proposal:
    """End the experiment: the active policy decides for every request."""
    after = build_policy_set(before.policies, before.active, None, before.admission)
    return Proposal(after, (f"{before.active} decides for everybody",))


def propose_admission(before: PolicySet, admission: AdmissionConfig, registry: Registry) -> Proposal:
    """Let `admission` decide which requests may begin. Raises ConfigError when its rule cannot be built."""
    build_rule(admission, registry)
    check_arm_rules(before.experiment, admission, registry)
    note = "requests that wait are handed to the new rule" if admission.enabled else "requests that wait begin"
    return Proposal(replace(before, admission=admission), (note,))


def merge_settings(before: FileSettings, seen: FileSettings, now: FileSettings) -> FileSettings:
    """Return `before` with the changes of the files from `seen` to `now`."""
    changed = {name: spec for name, spec in now.policies.items() if seen.policies.get(name) != spec}
    gone = seen.policies.keys() - now.policies.keys()
    return FileSettings(
        before.active if now.active == seen.active else now.active,
        before.experiment if now.experiment == seen.experiment else now.experiment,
        {name: spec for name, spec in {**before.policies, **changed}.items() if name not in gone},
        before.admission if now.admission == seen.admission else now.admission,
    )


def merge_file_changes(before: PolicySet, seen: FileSettings, now: FileSettings, registry: Registry) -> Proposal:
    """Apply only the changes of the files from `seen` to `now`. Raises ConfigError when a policy in use was
    removed.
    """
    merged = merge_settings(extract_settings(before), seen, now)
    gone = seen.policies.keys() - now.policies.keys()
    policies = {n: p for n, p in build_changed(before.policies, merged.policies, registry).items() if n not in gone}
    experiment, admission = merged.experiment, merged.admission
    needed = [merged.active, *(() if experiment is None else (*experiment.policies.values(), *experiment.shadows))]
    if lost := sorted(gone & set(needed)):
        raise ConfigError(
            *(f"policies.{name}: removed from the files while in use; activate another first" for name in lost)
        )
    if admission != before.admission:
        build_rule(admission, registry)
    return Proposal(build_policy_set(policies, merged.active, experiment, admission))


def build_changed(
    before: Mapping[str, Policy], specs: Mapping[str, schema.PolicyConfig], registry: Registry
) -> dict[str, Policy]:
    """Return `before` with the policies of `specs` added or rebuilt. Raises ConfigError."""
    policies = dict(before)
    problems: list[str | ConfigError] = []
    for name, spec in specs.items():
        old = policies.get(name)
        if POLICY_NAME.fullmatch(name) is None:
            rule = "a name has 1 to 100 letters, digits, dots, dashes or underscores"
            problems.append(f"policy '{quote_name(name)}': {rule}")
        elif old is None or old.spec != spec:
            try:
                policies[name] = build_policy(name, spec, registry, before=old)
            except ConfigError as error:
                problems.append(error)
    if len(policies) > max(len(before), schema.MAX_POLICIES):
        problems.append(f"policies: these make {len(policies)}, and at most {schema.MAX_POLICIES} are kept")
    if problems:
        raise ConfigError(*problems)
    return policies


def build_policy_set(
    policies: Mapping[str, Policy], active: str, experiment: ExperimentConfig | None, admission: AdmissionConfig
) -> PolicySet:
    """Build the policy set. Raises ConfigError when `active` or the experiment names an unknown policy, or an arm's
    admission rule cannot be built.
    """
    problems = [] if active in policies else [f"active: {describe_unknown('policy', active, policies)}"]
    if experiment is not None:
        unknown = check_experiment_policies(experiment, policies)
        problems += [f"experiment.{format_path(problem.path)}: {problem.text}" for problem in unknown]
    if problems:
        raise ConfigError(*problems)
    check_arm_rules(experiment, admission)
    return PolicySet(policies, active, experiment, admission=admission)
