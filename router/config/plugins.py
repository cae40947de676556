"""Build the plug-ins that a configuration names, and find what is wrong with them.

A policy file is wrong as well if it names a scorer that does not exist, gives it a parameter that it does not take,
or adds up costs of different units. The reader reports that with the line of the file; `scheduling/policy` builds
policies from the same plug-ins. Only the plug-in contract is known here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from router.config.schema import FALLBACK_POLICY, Config, PolicyConfig, SchedulingProfileConfig
from router.config.sections.admission import AdmissionConfig
from router.config.sections.base import PluginConfig, find_repeated
from router.config.sections.experiment import ExperimentConfig
from router.config.yaml_source import YamlPath, YamlProblem
from scorers.admission.contract import AdmissionRule
from scorers.contract import Filter, Picker, Plugin, Scorer, Unit
from scorers.registry import PluginError, Registry

P = TypeVar("P", bound=Plugin)

RESERVED = "found the name of the policy that decides when another fails, wanted another name"


class ProfilePlugins(NamedTuple):
    """The plug-ins of one scheduling profile with their names, and the weights of scorers; those that cannot be built
    are left out.
    """

    filters: list[tuple[str, Filter]]
    scorers: list[tuple[str, float, Scorer]]
    picker: tuple[str, Picker] | None


def build_plugins(
    spec: SchedulingProfileConfig, registry: Registry, problems: list[YamlProblem], path: YamlPath = ()
) -> ProfilePlugins:
    """Return the plug-ins of the scheduling profile at `path`, and append what is wrong with them to `problems`."""

    def build(kind: type[P], at: YamlPath, config: PluginConfig) -> P | None:
        try:
            return registry.build(kind, config.name, config.model_extra or {})
        except PluginError as refusal:
            problems.append(YamlProblem((*path, *at, *_find_key(refusal, config)), str(refusal)))
            return None

    filters = [(f.name, build(Filter, ("filters", i), f)) for i, f in enumerate(spec.filters)]
    scorers = [(s.name, s.weight, build(Scorer, ("scorers", i), s)) for i, s in enumerate(spec.scorers)]
    picker = build(Picker, ("picker",), spec.picker)
    weighted = [(name, weight, scorer) for name, weight, scorer in scorers if scorer is not None]
    for i in find_repeated(names := [scorer.name for scorer in spec.scorers]):
        text = f"scorer {names[i]} is listed already, as scorers[{names.index(names[i])}]: remove one of the two"
        problems.append(YamlProblem((*path, "scorers", i), text))
    problems += [YamlProblem((*path, "scorers"), misfit) for misfit in _find_misfits(weighted)]
    return ProfilePlugins(
        [(name, built) for name, built in filters if built is not None],
        weighted,
        None if picker is None else (spec.picker.name, picker),
    )


def check_policy(policy: PolicyConfig, registry: Registry, path: YamlPath = ()) -> list[YamlProblem]:
    """Return the faults of the plug-ins of the policy at `path`."""
    problems: list[YamlProblem] = []
    build_plugins(policy, registry, problems, path)
    for part, profile in (("prefill", policy.prefill), ("decode", policy.decode)):
        if profile is not None:
            build_plugins(profile, registry, problems, (*path, part))
    return problems


def check_policies(policies: Mapping[str, PolicyConfig], registry: Registry, path: YamlPath = ()) -> list[YamlProblem]:
    """Return the faults of the plug-ins of the policies, by name, at `path`."""
    problems = [
        problem for name, policy in policies.items() for problem in check_policy(policy, registry, (*path, name))
    ]
    if FALLBACK_POLICY in policies:
        problems.append(YamlProblem((*path, FALLBACK_POLICY), RESERVED))
    return problems


def check_admission(admission: AdmissionConfig, registry: Registry, path: YamlPath = ()) -> list[YamlProblem]:
    """Return the faults of the rule of the section at `path`."""
    return _check_rule(admission.rule, registry, (*path, "rule"))


def check_experiment_rules(experiment: ExperimentConfig, registry: Registry, path: YamlPath = ()) -> list[YamlProblem]:
    """Return the faults of the admission rules of the arms of the experiment at `path`."""
    return [
        problem
        for name, arm in experiment.arms.items()
        if arm.admission is not None
        for problem in _check_rule(arm.admission, registry, (*path, "arms", name, "admission"))
    ]


def check_config(config: Config, registry: Registry) -> list[YamlProblem]:
    """Return the faults of the plug-ins that the main file names."""
    problems = check_policies(config.policies, registry, ("policies",)) + check_admission(
        config.admission, registry, ("admission",)
    )
    if (experiment := config.experiment) is not None:
        problems += check_experiment_rules(experiment, registry, ("experiment",))
        if experiment.compares_admission and not config.admission.enabled:
            text = "the arms name admission rules, and admission.enabled is false: set it to true"
            problems.append(YamlProblem(("experiment", "arms"), text))
    return problems


def _check_rule(rule: PluginConfig, registry: Registry, path: YamlPath) -> list[YamlProblem]:
    try:
        registry.build(AdmissionRule, rule.name, rule.model_extra or {})
    except PluginError as refusal:
        return [YamlProblem((*path, *_find_key(refusal, rule)), str(refusal))]
    return []


def _find_key(refusal: PluginError, config: PluginConfig) -> YamlPath:
    """Return the key below the plug-in that is wrong; nothing if it is none that the file has."""
    return (refusal.parameter,) if refusal.parameter in (config.model_extra or {}) and refusal.parameter else ()


def _find_misfits(scorers: list[tuple[str, float, Scorer]]) -> list[str]:
    """Return why these scorers cannot be added up in one policy."""
    problems: list[str] = []
    if scorers and not any(weight > 0 for _, weight, _ in scorers):
        problems.append("at least one scorer needs a weight above 0")
    units_by_name = {name: scorer.unit for name, _, scorer in scorers}
    units = ", ".join(f"{name} in {unit.value}" for name, unit in units_by_name.items())
    if len({*units_by_name.values()}) > 1:
        problems.append(f"scorers of different units cannot be added up: {units}; keep those of one unit")
    elif len(units_by_name) > 1 and Unit.RAW in units_by_name.values():
        problems.append(f"a scorer whose unit is raw must be the only one: {units}; keep one of them")
    return problems
