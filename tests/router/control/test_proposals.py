"""What files and people want, against what is in force: who wins where."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.config import schema
from router.control import proposals
from router.control.proposals import FileSettings
from router.errors import ConfigError
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from scorers.registry import load_registry
from tests.router.control.control_plane import TEXTS, experiment, spec

REGISTRY = load_registry()
SPECS = {name: spec(text) for name, text in TEXTS.items()}
BUILT = {name: build_policy(name, text, REGISTRY) for name, text in SPECS.items()}

names = st.sampled_from(sorted(SPECS))
some_specs = st.dictionaries(names, st.sampled_from(list(SPECS.values())), min_size=1)


@st.composite
def saids(draw: st.DrawFn) -> FileSettings:
    policies: dict[str, schema.PolicyConfig] = draw(some_specs)
    of_these = st.sampled_from(sorted(policies))
    arms = draw(st.lists(of_these, unique=True, min_size=1, max_size=2))
    running = experiment(arms=dict.fromkeys(arms, 100 / len(arms)))
    return FileSettings(draw(of_these), draw(st.none() | st.just(running)), policies)


def regime_of(said: FileSettings) -> PolicySet:
    policies = {name: build_policy(name, text, REGISTRY) for name, text in said.policies.items()}
    return proposals.build_policy_set(policies, said.active, said.experiment)


@settings(max_examples=50)
@given(saids(), saids())
def test_without_a_hand_in_it_what_files_say_is_what_is_in_force(first: FileSettings, second: FileSettings) -> None:
    after = proposals.merge_file_changes(regime_of(first), first, second, REGISTRY).policy_set
    assert proposals.extract_settings(after) == second


@settings(max_examples=50)
@given(saids(), saids())
def test_files_that_stay_as_they_are_change_nothing(seen: FileSettings, in_force: FileSettings) -> None:
    before = regime_of(in_force)
    after = proposals.merge_file_changes(before, seen, seen, REGISTRY).policy_set
    assert after == before
    assert all(after.policies[name] is before.policies[name] for name in before.policies)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        proposals.build_policy_set(BUILT, "nera", experiment(arms={"fra": 100}, shadows=["x"]))
    assert str(refused.value).splitlines() == [
        'active: unknown policy "nera": did you mean "near"?',
        'experiment.arms.fra: unknown policy "fra": did you mean "far"?',
        'experiment.shadows[0]: unknown policy "x": known here: far, near, other',
    ]


def test_all_policies_that_cannot_be_built_are_said_at_once() -> None:
    wrong = spec("scorers: [{name: nobody}]")
    with pytest.raises(ConfigError) as refused:
        proposals.build_changed(BUILT, {"a": wrong, "b": SPECS["near"], "c d": wrong}, REGISTRY)
    assert [line.split(":")[0] for line in str(refused.value).splitlines()] == ["policies.a", "policy 'c d'"]


def test_what_is_gone_from_the_files_and_in_use_stays_in_the_way() -> None:
    before = PolicySet(BUILT, "near", experiment())
    seen = FileSettings("near", None, SPECS)
    now = FileSettings("near", None, {"near": SPECS["near"]})
    with pytest.raises(
        ConfigError, match=r"^policies\.far: removed from the files while in use; activate another first$"
    ):
        proposals.merge_file_changes(before, seen, now, REGISTRY)
    after = proposals.merge_file_changes(PolicySet(BUILT, "near"), seen, now, REGISTRY).policy_set
    assert set(after.policies) == {"near"}
