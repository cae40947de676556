"""Whose a request is, by its headers."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from router.config.sections.clients import ClientsConfig
from router.errors import ConfigError, Unauthorized
from router.tenants.directory import TenantDirectory
from router.tenants.isolation import derive_salt_key
from router.tenants.tenant import Tenant
from router.tenants.tokens import TokenVerifier
from tests.router.tenants.issuer import AUDIENCE, ISSUER, Issuer

NOW_S = 1_700_000_000.0


def keys(**named: str) -> bytes:
    return "\n".join(f"{hashlib.sha256(key.encode()).hexdigest()} {name}" for key, name in named.items()).encode()


def directory(issuer: Issuer | None = None, *, isolated: bool = False, **clients: Any) -> TenantDirectory:
    """Tenants with the keys k1 and k2 of `search`, and k3 of `chat`."""
    jwt = {} if issuer is None else {"jwt": {"issuer": ISSUER, "audience": AUDIENCE, "jwks_file": "x"} | issuer.options}
    config = ClientsConfig.model_validate({"keys_file": "keys"} | jwt | clients)
    verifier = None
    if issuer is not None and config.jwt is not None:
        verifier = TokenVerifier(config.jwt)
        verifier.set_keys(issuer.jwks(), "jwks")
    found = TenantDirectory(config, verifier, derive_salt_key(1) if isolated else None)
    found.set_keys(keys(k1="search", k2="search", k3="chat"), "keys")
    return found


def who(tenants: TenantDirectory, *, trusted: bool = False, **headers: str) -> Tenant:
    fields = {name.replace("_", "-").encode(): value.encode("latin-1") for name, value in headers.items()}
    return tenants.identify(fields, trusted=trusted, now_wall_s=NOW_S)


def test_a_tenant_may_have_several_keys() -> None:
    tenants = directory()
    assert who(tenants, authorization="Bearer k1").name == who(tenants, x_api_key="k2").name == "search"
    assert who(tenants, authorization="bearer k3").name == "chat"


def test_new_keys_replace_the_old_ones_at_once() -> None:
    tenants = directory()
    tenants.set_keys(keys(k9="search"), "keys")
    assert who(tenants, x_api_key="k9").name == "search"
    with pytest.raises(Unauthorized):
        who(tenants, x_api_key="k1")


def test_broken_keys_leave_the_old_ones_in_use() -> None:
    tenants = directory()
    with pytest.raises(ConfigError, match=r"keys:1: found text .*, wanted the sha256"):
        tenants.set_keys(b"nonsense", "keys")
    assert who(tenants, x_api_key="k1").name == "search"


def test_settings_are_those_of_the_class() -> None:
    tenants = directory(
        tenants={"search": {"service_class": "gold"}},
        service_classes={"gold": {"models": ["a"]}, "default": {"models": ["b"]}},
    )
    search, chat = who(tenants, x_api_key="k1"), who(tenants, x_api_key="k3")
    assert (search.service_class.name, search.service_class.allows("a")) == ("gold", True)
    assert (chat.service_class.name, chat.service_class.allows("a")) == ("default", False)
    assert tenants.find("search") is search


def test_a_trusted_proxy_names_the_tenant_and_nobody_else_does() -> None:
    tenants = directory(tenant_header="X-Tenant")
    assert who(tenants, trusted=True, x_tenant="other").name == "other"
    assert who(tenants, trusted=True, x_api_key="k1").name == "search"  # it named none
    assert who(tenants, x_tenant="other", x_api_key="k1").name == "search"
    with pytest.raises(Unauthorized):
        who(tenants, x_tenant="other")


@pytest.mark.parametrize("name", ["a" * 129, "a\tb", "a\x1bb"])
def test_names_that_could_not_be_shown_are_refused(name: str) -> None:
    with pytest.raises(Unauthorized, match="name of the tenant"):
        who(directory(tenant_header="x-tenant"), trusted=True, x_tenant=name)


def test_tokens_name_tenant_and_class() -> None:
    issuer = Issuer(class_claim="plan")
    tenants = directory(issuer, service_classes={"gold": {}}, tenants={"team": {"service_class": "gold"}})
    assert who(tenants, authorization=f"Bearer {issuer.token('team')}").service_class.name == "gold"
    guest = who(tenants, authorization=f"Bearer {issuer.token('guest', plan='gold')}")
    assert (guest.name, guest.service_class.name) == ("guest", "gold")
    assert who(tenants, authorization="Bearer k1").name == "search"  # keys as before
    with pytest.raises(Unauthorized, match="service class platinum is not known"):
        who(tenants, authorization=f"Bearer {issuer.token('guest', plan='platinum')}")


def test_without_proof_the_answer_says_what_is_wanted() -> None:
    with pytest.raises(Unauthorized, match=r"^a valid API key .* or a token signed by https://issuer.test is needed$"):
        who(directory(Issuer()))


def test_tenants_that_no_setting_names_are_bounded() -> None:
    tenants = directory(tenant_header="x-tenant")
    first = who(tenants, trusted=True, x_tenant="t0")
    assert who(tenants, trusted=True, x_tenant="t0") is first
    for number in range(10_000):
        who(tenants, trusted=True, x_tenant=f"n{number}")
    assert who(tenants, trusted=True, x_tenant="t0") is not first


def test_groups_share_a_scope() -> None:
    group = {"cache_group": "one"}
    tenants = directory(isolated=True, isolation="tenant", tenants={"search": group, "chat": group, "one": {}})
    search, chat = who(tenants, x_api_key="k1").scope, who(tenants, x_api_key="k3").scope
    alone = tenants.find("one").scope  # a tenant with the group's name is not in it
    assert search is not None
    assert chat is not None
    assert alone is not None
    assert search.salt == chat.salt != alone.salt
    assert who(directory(), x_api_key="k1").scope is None


@pytest.mark.parametrize(
    ("clients", "wrong"),
    [
        ({"tenants": {"a": {"service_class": "gold"}}}, 'found "gold", wanted default, or a class'),
        ({"keys_file": None, "isolation": "tenant"}, "nothing identifies a tenant"),
        ({"jwt": {"issuer": "i", "audience": "a"}}, "neither `jwks_file` nor `jwks_url`"),
        ({"tenant_header": "a b"}, "the name of a header, such as X-Tenant"),
    ],
)
def test_settings_that_cannot_work_are_refused(clients: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ValueError, match=wrong):
        ClientsConfig.model_validate({"keys_file": "keys"} | clients)
