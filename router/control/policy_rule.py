"""A policy set as plain configuration, which another process, or the next one, builds with the same functions."""

from __future__ import annotations

import msgspec
from pydantic import ValidationError

from router.config.schema import PolicyConfig
from router.config.sections.admission import AdmissionConfig
from router.config.sections.experiment import ExperimentConfig
from router.control import proposals
from router.control.proposals import FileSettings
from router.errors import ConfigError
from router.scheduling.experiments.policy_set import PolicySet
from scorers.registry import Registry


class PolicyRule(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The settings of a policy set. Policies that were built in code and have no text are not among them."""

    policies: dict[str, str]  # JSON of each policy, by name
    active: str
    experiment: str | None  # JSON
    admission: str  # JSON


def make_rule(settings: FileSettings) -> PolicyRule:
    """Return `settings` as a rule."""
    experiment = settings.experiment
    return PolicyRule(
        {name: spec.model_dump_json() for name, spec in settings.policies.items()},
        settings.active,
        None if experiment is None else experiment.model_dump_json(),
        settings.admission.model_dump_json(),
    )


def rule_of(policy_set: PolicySet) -> PolicyRule:
    """Return the rule from which `policy_set` can be built."""
    return make_rule(proposals.extract_settings(policy_set))


def read_rule(rule: PolicyRule) -> FileSettings:
    """Return the settings of a rule. Raises ConfigError for a rule of another version, with what this one lacks."""
    try:
        specs = {name: PolicyConfig.model_validate_json(text) for name, text in rule.policies.items()}
        experiment = None if rule.experiment is None else ExperimentConfig.model_validate_json(rule.experiment)
        return FileSettings(rule.active, experiment, specs, AdmissionConfig.model_validate_json(rule.admission))
    except ValidationError as error:
        raise ConfigError(f"policies of a router of another version: {error}") from error


def build_from_rule(rule: PolicyRule, before: PolicySet, registry: Registry) -> PolicySet:
    """Build a rule's policies, keeping unchanged ones of `before`. Raises ConfigError if one cannot be built
    here.
    """
    settings = read_rule(rule)
    here = {name: policy for name, policy in before.policies.items() if name in settings.policies}
    policies = proposals.build_changed(here, settings.policies, registry)
    return proposals.build_policy_set(policies, settings.active, settings.experiment, settings.admission)
