"""One attempt at a request: its observer, the data path that carries it out, and the release of its booking."""

from __future__ import annotations

from router.errors import NoTarget
from router.kvcache.events import TargetId
from router.proxy.engine_connection import ExchangeFailure
from router.proxy.relay import RelayCut, RelayEnd, RelayNotStarted
from router.request.request import Request
from router.request.response_observer import PrefilledKv, ResponseObserver
from router.request.services import Services
from router.scheduling.ticket import Ticket


class EarlierAttempts:
    """The results of earlier attempts at a request that the next attempt needs. `failed` has the ids of targets
    that failed, and of targets to which the request cannot go.
    """

    __slots__ = ("failed", "moved_to", "prefilled")

    def __init__(self, failed: set[str]) -> None:
        self.failed = failed
        self.prefilled: PrefilledKv | None = None
        self.moved_to: TargetId | None = None  # the target that answers instead of the chosen one


async def attempt(request: Request, ticket: Ticket, earlier: EarlierAttempts, services: Services) -> RelayEnd:
    """Carry out the attempt of `ticket`, and return how it ended. The booking is always released."""
    call = request.call
    observer = ResponseObserver(ticket, request, services)
    kv_transfer_params = None if earlier.prefilled is None else earlier.prefilled.params
    try:
        end = await services.data_path.run(request, ticket, kv_transfer_params, observer)
    finally:
        if call.expired and ticket.end == "client_gone":
            ticket.end, ticket.record.error = "cut", ExchangeFailure.STOPPED.value
            if not call.started:
                ticket.record.status = NoTarget.status
        services.scheduler.settle(ticket)
    if isinstance(end, RelayNotStarted):
        earlier.prefilled = keep_prefilled(observer.prefilled or earlier.prefilled, end, services.clock.now())
        culprit = ticket.prefill.target if end.prefill and ticket.prefill is not None else ticket.target
        earlier.failed.add(culprit.id)
        earlier.moved_to = end.moved_to
        if end.reason != "busy":
            services.suspect(culprit.instance.id)
    elif isinstance(end, RelayCut):
        services.suspect(ticket.target.instance.id)
    return end


def keep_prefilled(prefilled: PrefilledKv | None, end: RelayNotStarted, now: float) -> PrefilledKv | None:
    """Return handed-over KV that another engine may still fetch; None if there is none. An engine that took the
    request may have fetched the KV, which frees it; an engine that rejected the request drops the KV.
    """
    return prefilled if prefilled is not None and end.reason == "connect" and now < prefilled.until_s else None
