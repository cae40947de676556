"""Builds admission rules from the configuration."""

from __future__ import annotations

from router.config.sections.admission import AdmissionConfig
from router.config.sections.experiment import ExperimentConfig
from router.errors import ConfigError
from scorers.admission.contract import AdmissionRule
from scorers.admission.none import NoAdmission
from scorers.registry import PluginError, Registry, load_registry


def build_rule(config: AdmissionConfig, registry: Registry | None = None) -> AdmissionRule:
    """Return a new rule; the rule `none` if admission control is off. Each model needs its own rule, since rules
    keep bookings. Raises ConfigError.
    """
    try:
        rule = (registry or load_registry()).build(AdmissionRule, config.rule.name, config.rule.model_extra or {})
    except PluginError as refusal:
        raise ConfigError(f"admission.rule: {refusal}") from refusal
    return rule if config.enabled else NoAdmission()


def check_arm_rules(
    experiment: ExperimentConfig | None, admission: AdmissionConfig, registry: Registry | None = None
) -> None:
    """Build the admission rules that arms name. Raises ConfigError if a rule is invalid or admission control is
    off.
    """
    if experiment is None or not experiment.compares_admission:
        return
    if not admission.enabled:
        raise ConfigError("experiment.arms: they name admission rules, and admission.enabled is false")
    registry = registry or load_registry()
    for name, arm in experiment.arms.items():
        if arm.admission is not None:
            try:
                build_rule(admission.model_copy(update={"rule": arm.admission}), registry)
            except ConfigError as error:
                raise ConfigError(f"experiment.arms.{name}: {error}") from error
