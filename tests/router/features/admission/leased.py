"""A place in admission as a block of code: whatever leaves the block gives it back."""

from __future__ import annotations

from typing import Any, cast

from router.features.admission.lease import AdmissionLease
from router.features.admission.waiting import AdmissionStage
from router.kvcache.tokenized_prompt import TokenizedPrompt
from router.prompt.prompt import Prompt, UnknownIds
from router.scheduling.policy.record import Record
from router.tenants.tenant import Tenant
from tests.router.request.requests import UNKNOWN, a_request
from tests.router.request.some_services import some_services


class Leased:
    """Gives `lease` back at the end of its block, as a request with this `record` does; None: it never had one. A lease
    that is None, of a session that is not counted, stays None in the block.
    """

    def __init__(self, lease: AdmissionLease | None) -> None:
        self._lease = lease
        self.record: Record | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lease, name)

    def __enter__(self) -> Leased | None:
        return None if self._lease is None else self

    def __exit__(self, *raised: object) -> None:
        if self._lease is not None:
            request = a_request()
            request.record = self.record
            self._lease.release(request)


async def enter(
    stage: AdmissionStage,
    prompt: Prompt,
    tokens: TokenizedPrompt | UnknownIds = UNKNOWN,
    tenant: Tenant | None = None,
    arrived_s: float = 0.0,
) -> AdmissionLease | None:
    """Return the place that a request gets; None: nothing is counted of it."""
    request = a_request(prompt, tokens, tenant=tenant)
    request.arrived_s = arrived_s
    if (wait := stage.enter(request, some_services())) is not None:
        await wait
    return cast(AdmissionLease, request.held[-1]) if request.held else None
