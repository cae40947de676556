"""Requests wait for admission when their prompts' token ids are known."""

from __future__ import annotations

from router.request.admission.waiting import AdmissionControl
from router.request.request import Request
from router.request.services import Services


class AdmissionStage:
    """Admits requests by `control`."""

    def __init__(self, control: AdmissionControl) -> None:
        self._control = control

    async def enter(self, request: Request, services: Services) -> None:
        """Wait for a place. Raises `TooBusy`."""
        known = request.prompt, request.served, request.tokens
        lease = await self._control.acquire(*known, request.call.tenant, request.arrived_s)
        if lease is not None:
            request.avoid = lease.full
            request.hold(lease)
