"""What decides, told as configuration and built again."""

from __future__ import annotations

import pytest

from router.config.reader import load_policies
from router.config.schema import Config, PolicyConfig
from router.config.sections.experiment import ExperimentConfig
from router.control.workers.messages import PolicyRule
from router.control.workers.policy_sync import build_from_rule, make_rule
from router.errors import ConfigError
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policies
from scorers.registry import load_registry
from tests.paths import CONFIGS

FOLDER = CONFIGS / "policies"
ROOT_POLICIES = load_policies(Config(policies_dir=str(FOLDER)))
EXPERIMENT = ExperimentConfig.model_validate(
    {"arms": {"warm": 50, "round_robin": 30, "random": 20}, "shadows": ["lmetric"], "guard": {"worse_by": "20%"}}
)


def regime() -> PolicySet:
    return PolicySet(build_policies(ROOT_POLICIES), "warm", EXPERIMENT, frozenset({"random"}))


def test_every_policy_that_comes_along_is_the_same_on_the_other_side() -> None:
    told = regime()
    heard = build_from_rule(
        make_rule(told, 3), PolicySet(build_policies({"x": ROOT_POLICIES["random"]}), "x"), load_registry()
    )
    assert len(heard.policies) == len(ROOT_POLICIES) > 10
    assert {name: policy.digest for name, policy in heard.policies.items()} == {
        name: policy.digest for name, policy in told.policies.items()
    }
    assert (heard.active, heard.experiment, heard.rolled_back) == ("warm", EXPERIMENT, {"random"})
    assert heard.digests == told.digests


def test_policies_that_did_not_change_stay_with_all_that_they_learned() -> None:
    here = regime()
    changed = PolicyConfig.model_validate({"scorers": [{"name": "queue_depth"}]})
    then = PolicySet(here.policies | build_policies({"round_robin": changed}), "warm", EXPERIMENT)
    heard = build_from_rule(make_rule(then, 4), here, load_registry())
    assert heard.policies["warm"] is here.policies["warm"]
    assert heard.policies["round_robin"] is not here.policies["round_robin"]
    assert heard.policies["round_robin"].spec == changed


def test_policies_that_are_gone_are_gone() -> None:
    here = regime()
    then = PolicySet({"warm": here.policies["warm"]}, "warm")
    assert list(build_from_rule(make_rule(then, 5), here, load_registry()).policies) == ["warm"]


def test_what_cannot_be_built_is_said() -> None:
    outside = PolicyRule(1, {"warm": '{"scorers": [{"name": "not_installed_here"}]}'}, "warm", None, [])
    with pytest.raises(ConfigError, match="not_installed_here"):
        build_from_rule(outside, regime(), load_registry())
