"""From what somebody wants to the regime that would be: built and checked as a whole, before anything is touched.

Policies whose text did not change stay the objects that they are, and those that did take over the plug-ins that are
the same (`scheduling/policy/policy.py`), so what was learned is not lost. Raises `ConfigError` with every problem
found.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

from router.config import schema
from router.config.reader import unnamed_in
from router.config.sections.experiment import ExperimentConfig
from router.config.validation_errors import unknown
from router.config.yaml_source import dotted
from router.errors import ConfigError
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import Policy, build_policy
from scorers.registry import Registry

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Proposal(NamedTuple):
    regime: PolicySet
    notes: tuple[str, ...] = ()  # what else follows, in sentences


class FileSettings(NamedTuple):
    """What the files say, as they were last read without fault."""

    active: str
    experiment: ExperimentConfig | None
    policies: Mapping[str, schema.PolicyConfig]


def said_by(regime: PolicySet) -> FileSettings:
    """By the files from which a regime was built."""
    policies = {name: policy.spec for name, policy in regime.policies.items() if policy.spec is not None}
    return FileSettings(regime.active, regime.experiment, policies)


def put(
    before: PolicySet, specs: Mapping[str, schema.PolicyConfig], registry: Registry, active: str | None = None
) -> Proposal:
    """These policies are added, or take the place of those of their names; `active` comes into force at once."""
    policies = built(before.policies, specs, registry)
    after = regime(policies, before.active, before.experiment)
    notes = tuple(f"{name} is in memory only: no file was written" for name in specs)
    if active is None:
        return Proposal(after, notes)
    then = activated(after, active)
    return Proposal(then.regime, notes + then.notes)


def activated(before: PolicySet, name: str) -> Proposal:
    """This policy decides, and nothing else: a running experiment ends."""
    notes = ("the running experiment ends",) if before.experiment is not None else ()
    return Proposal(regime(before.policies, name, None), notes)


def experimenting(before: PolicySet, experiment: ExperimentConfig) -> Proposal:
    notes: tuple[str, ...] = ()
    if before.experiment is not None and before.experiment != experiment:
        notes = ("it takes the place of the running experiment, which ends",)
    return Proposal(regime(before.policies, before.active, experiment), notes)


def ended(before: PolicySet) -> Proposal:
    return Proposal(regime(before.policies, before.active, None), (f"{before.active} decides for everybody",))


def from_files(before: PolicySet, seen: FileSettings, now: FileSettings, registry: Registry) -> Proposal:
    """What files say wins where they have changed; where they have not, what is in force stays."""
    changed = {name: spec for name, spec in now.policies.items() if seen.policies.get(name) != spec}
    gone = seen.policies.keys() - now.policies.keys()
    policies = {n: p for n, p in built(before.policies, changed, registry).items() if n not in gone}
    active = before.active if now.active == seen.active else now.active
    experiment = before.experiment if now.experiment == seen.experiment else now.experiment
    needed = [active, *(() if experiment is None else (*experiment.arms, *experiment.shadows))]
    if lost := sorted(gone & set(needed)):
        raise ConfigError("\n".join(f"policies.{name}: is gone from the files, and is in use" for name in lost))
    return Proposal(regime(policies, active, experiment))


def built(
    before: Mapping[str, Policy], specs: Mapping[str, schema.PolicyConfig], registry: Registry
) -> dict[str, Policy]:
    """All of `before`, with these anew. Raises `ConfigError`."""
    policies, problems = dict(before), []
    for name, spec in specs.items():
        old = policies.get(name)
        if NAME.fullmatch(name) is None:
            problems.append(f"policy {name!r}: a name has 1 to 100 letters, digits, dots, dashes or underscores")
        elif old is None or old.spec != spec:
            try:
                policies[name] = build_policy(name, spec, registry, before=old)
            except ConfigError as wrong:
                problems.append(str(wrong))
    if problems:
        raise ConfigError("\n".join(problems))
    return policies


def regime(policies: Mapping[str, Policy], active: str, experiment: ExperimentConfig | None) -> PolicySet:
    """Raises `ConfigError` where a policy is named that is not there."""
    problems = [] if active in policies else [f"active: {unknown('policy', active, policies)}"]
    if experiment is not None:
        problems += [f"experiment.{dotted(p.path)}: {p.text}" for p in unnamed_in(experiment, policies)]
    if problems:
        raise ConfigError("\n".join(problems))
    return PolicySet(policies, active, experiment)
