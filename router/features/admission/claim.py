"""Whose a request is and how urgent, from its prompt and its tenant's service class."""

from __future__ import annotations

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
