"""What a tenant's limits do to its requests, stage by stage. The sums are in `test_metering.py`."""

from __future__ import annotations

import json
from typing import Any

import pytest

from router.config.sections.clients import ServiceClassConfig
from router.errors import Forbidden
from router.features.tenants.stages import TenantStages, cap_priority
from router.fleet.engine_facts import ModelCard
from router.tenants.tenant import ServiceClass, Tenant
from tests.router.features.admission.test_pending_request import a_prompt, a_tenant
from tests.router.features.tenants.test_meter import Scene
from tests.router.request.requests import a_request
from tests.router.request.some_services import some_services

STAGES = TenantStages(Scene().meter)


def test_a_model_is_allowed_by_the_name_that_the_client_gives_it() -> None:
    tenant = Tenant("acme", ServiceClass("c", ServiceClassConfig(models=["chat"])))
    STAGES.check(a_request(model="chat", tenant=tenant), some_services())
    with pytest.raises(Forbidden, match="`llama` is not among those that acme may use"):
        STAGES.check(a_request(model="llama", tenant=tenant), some_services())
    STAGES.check(a_request(model="llama"), some_services())


def test_a_tenant_sees_the_models_that_it_may_use() -> None:
    cards = [ModelCard(name, name, None, None) for name in ("chat", "llama")]
    tenant = Tenant("acme", ServiceClass("c", ServiceClassConfig(models=["chat"])))
    assert STAGES.filter_cards(cards, a_request(tenant=tenant).call) == cards[:1]
    assert STAGES.filter_cards(cards, a_request().call) == cards


@pytest.mark.parametrize(
    ("body", "goes_on"),
    [
        ({"priority": -7}, {"priority": 1}),
        ({"priority": 3}, {"priority": 3}),
        ({"priority": "-7"}, {"priority": 1}),  # which an engine may take for a number
        ({}, {}),  # engines that do not go by priorities refuse any
    ],
)
def test_engines_see_no_more_urgent_priority_than_is_allowed(body: dict[str, Any], goes_on: dict[str, Any]) -> None:
    own = body.get("priority")
    prompt = a_prompt(own if isinstance(own, int) else None)
    prompt.body = json.dumps({"model": "m"} | body).encode()
    cap_priority(prompt, a_tenant(highest_priority=1))
    assert json.loads(prompt.body) == {"model": "m"} | goes_on


def test_without_a_cap_the_body_stays() -> None:
    prompt = a_prompt(-7)
    for tenant in (None, a_tenant()):
        STAGES.limit(a_request(prompt, tenant=tenant), some_services())
        assert (prompt.body, prompt.priority) == (b"{}", -7)
