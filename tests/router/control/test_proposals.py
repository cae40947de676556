"""What files and people want, against what is in force: who wins where."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.config import schema
from router.config.sections.admission import AdmissionConfig
from router.control import proposals
from router.control.proposals import FileSettings, PolicyFiles
from router.errors import ConfigError
from router.scheduling.experiments.policy_set import PolicySet
from router.scheduling.policy.policy import build_policy
from scorers.registry import load_registry
from tests.router.control.control_plane import TEXTS, experiment, spec
from tests.suites.properties import examples

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
    return proposals.build_policy_set(policies, said.active, said.experiment, said.admission)


@examples(50)
@given(saids(), saids())
def test_without_a_hand_in_it_what_files_say_is_what_is_in_force(first: FileSettings, second: FileSettings) -> None:
    after = proposals.merge_file_changes(regime_of(first), first, second, REGISTRY).policy_set
    assert proposals.extract_settings(after) == second


@examples(50)
@given(saids(), saids())
def test_files_that_stay_as_they_are_change_nothing(seen: FileSettings, in_force: FileSettings) -> None:
    before = regime_of(in_force)
    after = proposals.merge_file_changes(before, seen, seen, REGISTRY).policy_set
    assert after == before
    assert all(after.policies[name] is before.policies[name] for name in before.policies)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        proposals.build_policy_set(BUILT, "nera", experiment(arms={"fra": 100}, shadows=["x"]), AdmissionConfig())
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


# what the files say

MAIN = "fleet: {instances: [{url: 'http://127.0.0.1:1'}]}\n"
POLICY = "scorers: [{name: random}]"


def read_main(folder: Path, text: str) -> PolicyFiles:
    file = folder / "main.yaml"
    file.write_text(MAIN + text)
    return proposals.read_files(file)


def test_the_live_part_and_the_policies_of_the_files(tmp_path: Path) -> None:
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "a.yaml").write_text(POLICY)
    found = read_main(
        tmp_path, f"policies_dir: p\npolicies: {{b: {{{POLICY}}}}}\nactive: b\nexperiment: {{arms: {{a: 100}}}}\n"
    )
    assert found.settings.active == "b"
    assert found.settings.experiment is not None
    assert set(found.settings.policies) == {"a", "b"}
    assert found.folder == tmp_path / "p"


def test_only_what_does_not_take_effect_live_needs_a_restart(tmp_path: Path) -> None:
    before = read_main(tmp_path, f"policies: {{a: {{{POLICY}}}}}\nactive: a\n")
    live = read_main(tmp_path, f"policies: {{b: {{{POLICY}}}}}\nactive: b\nexperiment: {{arms: {{b: 100}}}}\n")
    assert proposals.find_restart_keys(before, live) == []
    assert live.folder is None
    other = read_main(
        tmp_path,
        f"policies: {{b: {{{POLICY}}}}}\nactive: b\nlisten: {{port: 1}}\nlimits: {{grace_s: 1}}\npool: "
        "{masters: ['http://127.0.0.1:2']}\nseed: 4\n",
    )
    assert proposals.find_restart_keys(before, other) == ["listen.port", "limits.grace_s", "pool", "seed"]
    assert proposals.find_restart_keys(other, other) == []


def test_broken_files_are_refused_as_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"main\.yaml:2: active: unknown policy"):
        read_main(tmp_path, "active: nobody\n")
