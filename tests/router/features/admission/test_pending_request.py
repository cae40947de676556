"""Whose a request is and how urgent: weights and priorities of service classes, deadlines from objectives."""

from __future__ import annotations

from router.config.sections.clients import ServiceClassConfig
from router.features.admission.pending_request import derive_claim
from router.prompt.prompt import Endpoint, Prompt, UnknownIds
from router.tenants.tenant import ServiceClass, Tenant
from scorers.admission.contract import NO_CLAIM, Claim


def a_prompt(priority: int | None = None, ttft_ms: float | None = None) -> Prompt:
    source = UnknownIds("endpoint")
    return Prompt(Endpoint.CHAT, "/v1/chat/completions", "m", b"{}", source, priority=priority, ttft_ms=ttft_ms)


def a_tenant(**settings: float) -> Tenant:
    return Tenant("t", ServiceClass("c", ServiceClassConfig.model_validate(settings)))


def test_without_tenants_and_wishes_there_is_no_claim() -> None:
    assert derive_claim(a_prompt(), None, 5.0) == NO_CLAIM


def test_a_priority_is_capped_and_a_less_urgent_one_is_not() -> None:
    capped = a_tenant(weight=2.0, highest_priority=1)
    assert derive_claim(a_prompt(-7), capped, 5.0) == Claim("t", 2.0, 1)
    assert derive_claim(a_prompt(), capped, 5.0) == Claim("t", 2.0, 1), "0 is more urgent than it may be"
    assert derive_claim(a_prompt(3), capped, 5.0) == Claim("t", 2.0, 3)
    assert derive_claim(a_prompt(-7), a_tenant(), 5.0) == Claim("t", 1.0, -7)


def test_a_deadline_counts_from_the_arrival() -> None:
    assert derive_claim(a_prompt(ttft_ms=1500.0), None, 5.0) == Claim(deadline_s=6.5)
