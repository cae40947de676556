"""A policy set as plain configuration, and the policies that another process builds from it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from router.config.reader import load_policies
from router.config.schema import Config, PolicyConfig
from router.config.sections.admission import AdmissionConfig
from router.config.sections.experiment import ExperimentConfig
from router.control.policy_rule import PolicyRule, build_from_rule, rule_of
from router.errors import ConfigError
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policies
from scorers.registry import load_registry
from tests.paths import CONFIGS

ROOT_POLICIES = load_policies(Config(policies_dir=str(CONFIGS / "policies")))
SENT_EXPERIMENT = ExperimentConfig.model_validate(
    {"arms": {"warm": 50, "round_robin": 30, "random": 20}, "shadows": ["lmetric"], "guard": {"worse_by": "20%"}}
)


def configured() -> PolicySet:
    return PolicySet(build_policies(ROOT_POLICIES), "warm", SENT_EXPERIMENT)


def test_all_policies_of_a_decision_are_the_same_elsewhere() -> None:
    sent = configured()
    before = PolicySet(build_policies({"x": ROOT_POLICIES["random"]}), "x")
    built = build_from_rule(rule_of(sent), before, load_registry())
    assert len(built.policies) == len(ROOT_POLICIES) > 10
    assert {name: policy.digest for name, policy in built.policies.items()} == {
        name: policy.digest for name, policy in sent.policies.items()
    }
    assert (built.active, built.experiment, built.digests) == ("warm", SENT_EXPERIMENT, sent.digests)


def test_policies_that_did_not_change_stay_with_all_that_they_learned() -> None:
    here = configured()
    changed = PolicyConfig.model_validate({"scorers": [{"name": "queue_depth"}]})
    then = PolicySet(here.policies | build_policies({"round_robin": changed}), "warm", SENT_EXPERIMENT)
    built = build_from_rule(rule_of(then), here, load_registry())
    assert built.policies["warm"] is here.policies["warm"]
    assert built.policies["round_robin"] is not here.policies["round_robin"]
    assert built.policies["round_robin"].spec == changed


def test_policies_that_are_not_in_a_decision_are_gone() -> None:
    here = configured()
    then = PolicySet({"warm": here.policies["warm"]}, "warm")
    assert list(build_from_rule(rule_of(then), here, load_registry()).policies) == ["warm"]


def test_what_admits_requests_is_the_same_elsewhere() -> None:
    here = configured()
    admission = AdmissionConfig.model_validate({"enabled": True, "rule": {"name": "concurrency", "per_target": 3}})
    built = build_from_rule(rule_of(replace(here, admission=admission)), here, load_registry())
    assert built.admission == admission


def test_a_policy_that_cannot_be_built_is_named() -> None:
    rule = PolicyRule({"warm": '{"scorers": [{"name": "not_installed_here"}]}'}, "warm", None, "{}")
    with pytest.raises(ConfigError, match="not_installed_here"):
        build_from_rule(rule, configured(), load_registry())
