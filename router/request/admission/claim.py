"""Whose a request is and how urgent, from its prompt and its tenant's service class; and the cap on that."""

from __future__ import annotations

from msgspec import Raw

from router.prompt.body_rewrite import open_body, set_members
from router.prompt.prompt import Prompt
from router.tenants.tenant import Tenant
from scorers.admission.contract import Claim


def derive_claim(prompt: Prompt, tenant: Tenant | None, arrived_s: float) -> Claim:
    """Return the claim of a request that arrived at `arrived_s`. Its priority is not more urgent than its tenant may be
    (`service_classes.*.highest_priority`), 0 where it names none; its deadline is its objective for the first token.
    """
    priority = prompt.priority or 0
    deadline_s = None if prompt.ttft_ms is None else arrived_s + prompt.ttft_ms / 1e3
    if tenant is None:
        return Claim(None, 1.0, priority, deadline_s)
    config = tenant.service_class.config
    if config.highest_priority is not None:
        priority = max(priority, config.highest_priority)
    return Claim(tenant.name, config.weight, priority, deadline_s)


def cap_priority(prompt: Prompt, tenant: Tenant | None) -> None:
    """Make the `priority` in the body, which engines go by, no more urgent than the tenant's may be. One that cannot be
    read here, but perhaps by an engine, is replaced as well.
    """
    highest = None if tenant is None else tenant.service_class.config.highest_priority
    if highest is None or (prompt.priority is not None and prompt.priority >= highest):
        return
    if prompt.priority is not None or (prompt.is_object and "priority" in open_body(prompt.body, ()).members):
        prompt.priority = highest
        prompt.body = set_members(prompt.body, {"priority": Raw(b"%d" % highest)})
