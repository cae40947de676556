"""The section `clients`: who may send requests, which tenant each is, and what a tenant may do."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from router.config.sections.base import WEB, PathName, Positive, Seconds, Section, Shape, find_choice_fault

DEFAULT_CLASS = "default"
MAX_NAME_CHARS = 128
HEADER_NAME = Shape(r"^[A-Za-z0-9-]+$", "the name of a header, such as X-Tenant")
JWKS_URL = Shape(r"^https?://[^\s#]+$", "a URL such as https://idp.example.org/keys", WEB)


def is_client_name(name: str) -> bool:
    """Return whether a tenant, a group of them or a class may have this name, wherever it comes from: it is joined
    with names that clients choose, and shown to people.
    """
    return 0 < len(name) <= MAX_NAME_CHARS and name.isprintable()


def _check_name(name: str) -> str:
    if not is_client_name(name):
        raise ValueError(f"a name has 1 to {MAX_NAME_CHARS} printable characters")
    return name


ClientName = Annotated[str, AfterValidator(_check_name)]


class JwtConfig(Section):
    """Bearer tokens that an identity provider signed (RFC 7519). Their signature, `exp`, `nbf`, issuer and audience
    are checked.
    """

    issuer: str
    """value that `iss` must have"""
    audience: str
    """value that `aud` must have or contain"""
    jwks_file: PathName | None = None
    """JSON Web Key Set with the provider's public keys, read again when it changes"""
    jwks_url: Annotated[str, JWKS_URL] | None = None
    """where the provider publishes that set; give one of both"""
    refresh_s: Seconds = 600.0
    """interval at which `jwks_url` is fetched again, seconds; earlier, at most every 10 s, for a key that is
    unknown
    """
    tenant_claim: str = "sub"
    """claim with the tenant's name"""
    class_claim: str | None = None
    """claim with the name of its service class; null: that of `tenants`"""
    leeway_s: float = Field(default=30.0, ge=0)
    """how far the clocks may differ, seconds"""

    @model_validator(mode="after")
    def _require_one_source(self) -> JwtConfig:
        given = {"jwks_file": self.jwks_file is not None, "jwks_url": self.jwks_url is not None}
        if (fault := find_choice_fault("the section", given)) is not None:
            raise ValueError(fault)
        return self


class TenantLimits(Section):
    """Limits on what a tenant of a class uses: each tenant has them for itself, not the class as a whole."""

    requests_per_minute: Positive | None = None
    """requests in any 60 s; null: no limit, as for the others"""
    tokens_per_minute: Positive | None = None
    """tokens that engines compute in any 60 s: those of prompts that were not found in a cache, and those of
    answers
    """
    concurrent: Positive | None = None
    """requests at a time"""
    budget_per_day: float | None = Field(default=None, gt=0)
    """what its tokens may cost from midnight to midnight UTC, in the unit of `clients.prices`"""


class PricesConfig(Section):
    """Prices of one token, by kind. The unit is the operator's own; it is the unit of `budget_per_day` and of
    nothing else.
    """

    input: float = Field(default=1.0, ge=0)
    """price of a prompt's token that an engine computed"""
    cached: float = Field(default=0.1, ge=0)
    """price of a prompt's token that was found in a cache"""
    output: float = Field(default=4.0, ge=0)
    """price of an answer's token"""


class ServiceClassConfig(Section):
    """Rights and limits of each tenant of the class."""

    models: list[str] = ["*"]
    """names of models, aliases and adapters that it may use; `*` stands for any characters"""
    weight: float = Field(default=1.0, gt=0, le=1e6)
    """share of each tenant of the class while the engines are saturated, against those of others; with `admission`
    enabled and its rule `fit` or `saturation`"""
    highest_priority: int | None = None
    """most urgent `priority` that its requests may have, lower is more urgent: a more urgent one in a body is
    replaced; null: any
    """
    limits: TenantLimits | None = None
    """what each of its tenants may use; null: as much as there is"""


class TenantConfig(Section):
    service_class: ClientName = DEFAULT_CLASS
    """name of its class in `service_classes`"""
    cache_group: ClientName | None = None
    """tenants of one group hit each other's cached prompts when `isolation` is `tenant`; null: its own alone"""


class ClientsConfig(Section):
    keys_file: PathName | None = None
    """file with the sha256 (hex) of one API key and the name of its tenant per line, read again when it changes; a
    tenant may have several keys; null: no API keys"""
    jwt: JwtConfig | None = None
    """accept signed tokens; null: none"""
    tenant_header: Annotated[str, HEADER_NAME] | None = None
    """header in which a proxy of `listen.trusted_proxies` (or a gateway, for `picker`) names the tenant of a
    request; from others it is ignored; null: none
    """
    tenants: dict[ClientName, TenantConfig] = {}
    """settings of tenants by name; one that is not listed has the class `default`"""
    service_classes: dict[ClientName, ServiceClassConfig] = {}
    """service classes by name; `default` may use all models unless it is given here"""
    isolation: Literal["off", "tenant"] = "off"
    """tenant: no tenant can hit, or learn of, what another one's requests left in the caches: the router salts them
    with the deployment's secret (`index.key_secret_env`)"""
    prices: PricesConfig = PricesConfig()
    usage_file: PathName | None = None
    """SQLite file with the usage of each tenant by day, from which budgets of the day continue after a restart;
    each router needs one of its own; null: both are kept in memory only and begin anew at a restart
    """

    @property
    def identifies(self) -> bool:
        """Requests need a tenant."""
        return any((self.keys_file, self.jwt, self.tenant_header))

    @model_validator(mode="after")
    def _check_classes(self) -> ClientsConfig:
        known = {DEFAULT_CLASS, *self.service_classes}
        for name, tenant in self.tenants.items():
            if tenant.service_class not in known:
                listed = " or ".join(sorted(known))
                problem = f'found "{tenant.service_class}", wanted {listed}, or a class in clients.service_classes'
                raise ValueError(f"tenants.{name}.service_class: {problem}")
        settings = (self.tenants, self.service_classes, self.isolation != "off", self.usage_file)
        if not self.identifies and any(settings):
            identifying = "keys_file, jwt or tenant_header"
            raise ValueError(f"tenants have settings here, and nothing identifies a tenant: give {identifying}")
        return self
