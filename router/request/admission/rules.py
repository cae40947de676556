"""From the configuration to an admission rule."""

from __future__ import annotations

from router.config.sections.listeners import AdmissionConfig
from router.errors import ConfigError
from scorers.admission.contract import AdmissionRule
from scorers.admission.none import NoAdmission
from scorers.registry import PluginError, Registry, load_registry


def build_rule(config: AdmissionConfig, registry: Registry | None = None) -> AdmissionRule:
    """Return a new rule, `none` where admission control is off. Each model needs one of its own, since rules keep
    books. Raises ConfigError.
    """
    try:
        rule = (registry or load_registry()).build(AdmissionRule, config.rule.name, config.rule.model_extra or {})
    except PluginError as refusal:
        raise ConfigError(f"admission.rule: {refusal}") from refusal
    return rule if config.enabled else NoAdmission()
