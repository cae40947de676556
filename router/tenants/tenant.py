"""A tenant: the owner of requests, and the rights that its service class gives it."""

from __future__ import annotations

import re
from fnmatch import translate

from router.config.sections.clients import ServiceClassConfig, TenantLimits
from router.tenants.isolation import CacheScope

NONE = "(?!)"  # a pattern that matches nothing


class ServiceClass:
    """The rights of the tenants of a class: the configuration, prepared for fast checks of every request."""

    __slots__ = ("_models", "config", "limits", "most_tokens", "name")

    def __init__(self, name: str, config: ServiceClassConfig) -> None:
        self.name = name
        self.config = config
        limited = config.limits is not None and config.limits != TenantLimits()
        self.limits = config.limits if limited else None  # None: no limits
        self.most_tokens = None if self.limits is None else self.limits.tokens_per_minute  # in one prompt
        every = "*" in config.models
        self._models = None if every else re.compile("|".join(map(translate, config.models)) or NONE)

    @property
    def allows_all(self) -> bool:
        """Whether tenants of this class may use every model."""
        return self._models is None

    def allows(self, model: str) -> bool:
        """Return whether tenants of this class may use a model, given the client's name for the model."""
        return self._models is None or self._models.match(model) is not None


class Tenant:
    """One tenant. If `scope` is None, its cached prompts are not isolated from those of other tenants."""

    __slots__ = ("name", "scope", "service_class")

    def __init__(self, name: str, service_class: ServiceClass, scope: CacheScope | None = None) -> None:
        self.name = name
        self.service_class = service_class
        self.scope = scope


def own_name(tenant: Tenant | None, name: str) -> str:
    """Return a name that a client chose, qualified by its tenant if tenants are isolated."""
    return name if tenant is None or tenant.scope is None else tenant.scope.qualify(name)
