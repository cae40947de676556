"""Requests for a model without an instance wait until one is there, where `wake` lets them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

from router.errors import NotFound, quote_name
from router.request.request import Request
from router.request.services import Services
from router.request.wake.model_waits import ModelWaits


@final
class WakeStage:
    """`find_base` returns the model that an instance has to serve for requests for a name."""

    def __init__(self, waits: ModelWaits, find_base: Callable[[str], str]) -> None:
        self._waits = waits
        self._find_base = find_base

    def enter(self, request: Request, services: Services) -> Awaitable[None] | None:
        """Wait until an instance serves the prompt's model. Raises `NoTarget` when none comes, `NotFound` for a name
        that no instance can get.
        """
        model = request.prompt.model
        if model is None:
            return None
        needed = self._find_base(model)
        if self._waits.has_to_wait(needed):
            return self._wait(request, needed)
        if len(services.scheduler.fleet) == 0:  # which is no reason to try again, as it is without `wake`
            raise NotFound(f"the model `{quote_name(model)}` does not exist", param="model", code="model_not_found")
        return None

    async def _wait(self, request: Request, model: str) -> None:
        waited_s = await self._waits.wait(model, request.call.sender, request.slot.held_bytes)
        request.durations.wake_ms = waited_s * 1e3
