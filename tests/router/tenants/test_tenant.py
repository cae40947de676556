"""What a service class allows, and names of a tenant's own."""

from __future__ import annotations

import pytest

from router.config.sections.clients import ServiceClassConfig
from router.tenants.isolation import CacheScope, derive_salt_key
from router.tenants.tenant import ServiceClass, Tenant, own_name


@pytest.mark.parametrize(
    ("models", "model", "allowed"),
    [
        (["*"], "anything", True),
        (["llama-*"], "llama-8b", True),
        (["llama-*"], "qwen", False),
        (["qwen", "llama-8b"], "llama-8b", True),
        (["llama"], "llama-8b", False),  # the whole name
        (["llama"], "my-llama", False),
        (["llama"], "LLAMA", False),
        (["a.b"], "axb", False),  # a dot is a dot
        ([], "llama", False),
    ],
)
def test_models_by_pattern(models: list[str], model: str, allowed: bool) -> None:
    assert ServiceClass("c", ServiceClassConfig(models=models)).allows(model) is allowed


def test_names_are_the_tenants_own_where_tenants_are_kept_apart() -> None:
    gold = ServiceClass("gold", ServiceClassConfig())
    assert own_name(None, "s") == own_name(Tenant("a", gold), "s") == "s"
    apart = Tenant("a", gold, CacheScope(derive_salt_key(1), "tenant a"))
    assert own_name(apart, "s") == "tenant a\x1fs"
