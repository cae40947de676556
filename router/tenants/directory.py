"""Finds the tenant of a request, by the proof in its headers.

The order is: the header of a trusted proxy, a signed token, an API key. Another sender's tenant header proves
nothing and is ignored, not rejected. An API key is looked up by its sha256, so timing reveals something only about
hashes, not about keys.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING

from router.config.reader import parse_client_keys
from router.config.sections.clients import (
    DEFAULT_CLASS,
    ClientsConfig,
    ServiceClassConfig,
    TenantConfig,
    is_client_name,
)
from router.errors import Unauthorized, quote_name
from router.tenants.isolation import CacheScope
from router.tenants.tenant import ServiceClass, Tenant

if TYPE_CHECKING:  # PyJWT is loaded where tokens are configured
    from router.tenants.tokens import TokenVerifier

UNLISTED_KEPT = 10_000  # cached tenants that no setting names; they are rebuilt after they were dropped
UNLISTED = TenantConfig()


class TenantDirectory:
    """All tenants. Without a `verifier`, tokens are not used; without a `salt_key`, caches are not isolated."""

    def __init__(
        self,
        config: ClientsConfig,
        verifier: TokenVerifier | None = None,
        salt_key: bytes | None = None,
    ) -> None:
        self._keys: dict[str, str] = {}  # names of tenants by the sha256 of their keys
        self._config = config
        self._verifier = verifier
        self._salt_key = salt_key
        self._header = None if config.tenant_header is None else config.tenant_header.lower().encode()
        self._wanted = "a valid API key (Authorization: Bearer KEY, or x-api-key)"
        if config.jwt is not None:
            self._wanted = f"{self._wanted} or a token signed by {config.jwt.issuer}"
        classes = {DEFAULT_CLASS: ServiceClassConfig(), **config.service_classes}
        self._classes = {name: ServiceClass(name, settings) for name, settings in classes.items()}
        self._listed = {name: self._build(name, settings.service_class) for name, settings in config.tenants.items()}
        self._unlisted: OrderedDict[tuple[str, str], Tenant] = OrderedDict()  # by name and class

    def set_keys(self, content: bytes, where: str) -> None:
        """Replace the API keys by those of a keys file. Raises ConfigError; the old keys then stay in use."""
        self._keys = parse_client_keys(content, where)

    def identify(self, fields: Mapping[bytes, bytes], *, trusted: bool, now_wall_s: float) -> Tenant:
        """Return the tenant of a request with these headers (names in lower case). `trusted` is whether a trusted
        proxy sent them. Raises `Unauthorized`.
        """
        if trusted and self._header is not None and (named := fields.get(self._header)):
            return self._get(_check_name(named.decode("latin-1")), None)
        bearer = fields.get(b"authorization", b"")
        key = (bearer[7:] if bearer[:7].lower() == b"bearer " else fields.get(b"x-api-key", b"")).strip()
        if self._verifier is not None and key.count(b".") == 2:
            claims = self._verifier.verify(key, now_wall_s)
            if claims.service_class is not None and claims.service_class not in self._classes:
                known = quote_name(claims.service_class)
                raise Unauthorized(f"the token's service class {known} is not known here", code="unknown_class")
            return self._get(_check_name(claims.tenant), claims.service_class)
        name = self._keys.get(hashlib.sha256(key).hexdigest())
        if name is None:
            raise Unauthorized(f"{self._wanted} is needed", code="invalid_api_key")
        return self._get(name, None)

    def find(self, name: str) -> Tenant:
        """Return a tenant by its name."""
        return self._get(name, None)

    def _get(self, name: str, service_class: str | None) -> Tenant:
        """Return a tenant. `service_class` comes from a token; if it is None, the settings determine the class."""
        listed = self._listed.get(name)
        if service_class is None and listed is not None:
            return listed
        key = name, service_class or DEFAULT_CLASS
        if (tenant := self._unlisted.get(key)) is not None:
            return tenant
        tenant = self._unlisted[key] = self._build(*key)
        if len(self._unlisted) > UNLISTED_KEPT:
            self._unlisted.popitem(last=False)
        return tenant

    def _build(self, name: str, service_class: str) -> Tenant:
        group = self._config.tenants.get(name, UNLISTED).cache_group
        owner = f"tenant {name}" if group is None else f"group {group}"
        scope = None if self._salt_key is None else CacheScope(self._salt_key, owner)
        return Tenant(name, self._classes[service_class], scope)


def _check_name(name: str) -> str:
    if not is_client_name(name):
        raise Unauthorized("the name of the tenant is empty, too long or not printable", code="invalid_tenant")
    return name
