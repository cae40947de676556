"""Policy sets between workers: sent as configuration, built by the same functions as the configuration of a router.

A rule carries the full text of every policy. A follower keeps the policies whose text did not change, with everything
that their scorers learned.
"""

from __future__ import annotations

from dataclasses import replace

from router.config.schema import PolicyConfig
from router.config.sections.experiment import ExperimentConfig
from router.control import proposals
from router.control.workers.messages import PolicyRule
from router.scheduling.experiments.policy_set import PolicySet
from scorers.registry import Registry


def make_rule(policy_set: PolicySet, version: int) -> PolicyRule:
    """Return `policy_set` as a message, without policies that were built in code and have no text."""
    return PolicyRule(
        version,
        {
            name: policy.spec.model_dump_json()
            for name, policy in policy_set.policies.items()
            if policy.spec is not None
        },
        policy_set.active,
        None if policy_set.experiment is None else policy_set.experiment.model_dump_json(),
        sorted(policy_set.rolled_back),
    )


def build_from_rule(rule: PolicyRule, before: PolicySet, registry: Registry) -> PolicySet:
    """Build the policy set of `rule`, keeping unchanged policies of `before`.

    Raises ConfigError when a policy cannot be built in this process, although the leader could build it.
    """
    specs = {name: PolicyConfig.model_validate_json(text) for name, text in rule.policies.items()}
    here = {name: policy for name, policy in before.policies.items() if name in specs}
    experiment = None if rule.experiment is None else ExperimentConfig.model_validate_json(rule.experiment)
    policies = proposals.build_changed(here, specs, registry)
    policy_set = proposals.build_policy_set(policies, rule.active, experiment)
    return replace(policy_set, rolled_back=frozenset(rule.rolled_back))
