"""A tenant: whose a request is, and what its service class lets it do."""

from __future__ import annotations

import re
from fnmatch import translate

from router.config.sections.clients import ServiceClassConfig, TenantLimits
from router.tenants.isolation import CacheScope

NONE = "(?!)"  # a pattern that matches nothing


class ServiceClass:
    """Rights of the tenants of a class: the configuration, prepared for questions that every request asks."""

    __slots__ = ("_models", "config", "limits", "most_tokens", "name")

    def __init__(self, name: str, config: ServiceClassConfig) -> None:
        self.name = name
        self.config = config
        limited = config.limits is not None and config.limits != TenantLimits()
        self.limits = config.limits if limited else None  # None: as much as there is
        self.most_tokens = None if self.limits is None else self.limits.tokens_per_minute  # of a prompt
        every = "*" in config.models
        self._models = None if every else re.compile("|".join(map(translate, config.models)) or NONE)

    @property
    def allows_all(self) -> bool:
        """Its tenants may use every model."""
        return self._models is None

    def allows(self, model: str) -> bool:
        """Return whether its tenants may use a model, by the name that the client gives it."""
        return self._models is None or self._models.match(model) is not None


class Tenant:
    """One tenant. `scope` None: its cached prompts are not kept apart from those of others."""

    __slots__ = ("name", "scope", "service_class")

    def __init__(self, name: str, service_class: ServiceClass, scope: CacheScope | None = None) -> None:
        self.name = name
        self.service_class = service_class
        self.scope = scope


def own_name(tenant: Tenant | None, name: str) -> str:
    """Return a name that a client gave as one of its tenant's own, where tenants are kept apart."""
    return name if tenant is None or tenant.scope is None else tenant.scope.qualify(name)
