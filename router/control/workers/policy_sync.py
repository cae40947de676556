"""A regime as a message and back: told as configuration, built by the functions that build everything.

Policies are told with all their text; a follower keeps those that did not change, with what their scorers learned.
"""

from __future__ import annotations

from dataclasses import replace

from router.config.schema import PolicyConfig
from router.config.sections.experiment import ExperimentConfig
from router.control import proposals
from router.control.workers.messages import PolicyRule
from router.scheduling.experiments.policy_set import PolicySet
from scorers.registry import Registry


def make_rule(regime: PolicySet, version: int) -> PolicyRule:
    """Policies that were built by hand have no text, and stay out."""
    return PolicyRule(
        version,
        {name: policy.spec.model_dump_json() for name, policy in regime.policies.items() if policy.spec is not None},
        regime.active,
        None if regime.experiment is None else regime.experiment.model_dump_json(),
        sorted(regime.rolled_back),
    )


def build_from_rule(rule: PolicyRule, before: PolicySet, registry: Registry) -> PolicySet:
    """Raises `ConfigError` where it cannot be built here: the process that told it could."""
    specs = {name: PolicyConfig.model_validate_json(text) for name, text in rule.policies.items()}
    here = {name: policy for name, policy in before.policies.items() if name in specs}
    experiment = None if rule.experiment is None else ExperimentConfig.model_validate_json(rule.experiment)
    regime = proposals.build_policy_set(proposals.build_changed(here, specs, registry), rule.active, experiment)
    return replace(regime, rolled_back=frozenset(rule.rolled_back))
