"""The stages of a request that apply its tenant's limits.

count      before the body is read: count the request by its headers, or refuse it with 429
check      check that the tenant may use the model, by the client's name for it, or refuse with 403
limit      cap the priority, and limit the tokens that are counted to what the tenant may send
reserve    charge what the request will probably use, or refuse it with 429
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from msgspec import Raw

from router.errors import RequestRefused
from router.features.tenants.ledger import LEAST, Reservation
from router.features.tenants.meter import Meter, held_tokens
from router.features.tenants.token_counts import NO_TOKENS, TokenCounts
from router.fleet.engine_facts import ModelCard
from router.prompt.body_rewrite import open_body, set_members
from router.prompt.prompt import Prompt
from router.proxy.call import ClientRequest
from router.request.models import check_allowed
from router.request.request import Held, Request
from router.request.services import Services
from router.scheduling.ticket import Ticket
from router.tenants.tenant import Tenant


class ChargedRequest(Held):
    """The charge of a tenant's request. `reservation` is None if the tenant has no limits."""

    def __init__(self, meter: Meter, reservation: Reservation | None) -> None:
        self._meter = meter
        self.reservation = reservation

    def on_first_byte(self, ticket: Ticket) -> None:
        if self.reservation is not None and ticket.status is not None and ticket.status < 400:
            self.reservation.correct(held_tokens(ticket.attempt))  # before a long stream ends

    def release(self, request: Request) -> None:
        if request.record is not None:
            self._meter.settle(request, request.record, self.reservation)
        elif self.reservation is not None:
            self.reservation.settle(self.reservation.if_left)


@final
class TenantStages:
    """The stages of requests whose clients identify themselves."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter

    def count(self, request: Request, services: Services) -> None:
        self._count(request, LEAST)

    def count_stored(self, request: Request, services: Services) -> None:
        """Count a request about a stored response, even if no token is left: it may cancel a running response."""
        self._count(request, NO_TOKENS)

    def _count(self, request: Request, least: TokenCounts) -> None:
        if request.call.tenant is not None:
            request.hold(ChargedRequest(self._meter, self._meter.open(request.call, least=least)))

    def check(self, request: Request, services: Services) -> None:
        check_allowed(request.prompt.model, request.call.tenant)

    def limit(self, request: Request, services: Services) -> None:
        if (tenant := request.call.tenant) is None:
            return
        cap_priority(request.prompt, tenant)
        request.most_tokens = tenant.service_class.most_tokens
        use = request.find(ChargedRequest)
        if use is not None and use.reservation is not None:
            self._meter.begin_counting(use.reservation, request.prompt)

    def reserve(self, request: Request, services: Services) -> None:
        if (use := request.find(ChargedRequest)) is None:
            return
        request.counts_events = True
        if use.reservation is not None:
            self._meter.reserve(request.call, use.reservation, request.prompt, request.tokens)
            request.follow = use.reservation.follow

    def filter_cards(self, cards: Sequence[ModelCard], call: ClientRequest) -> Sequence[ModelCard]:
        """Return the model cards that the tenant may use."""
        tenant = call.tenant
        return cards if tenant is None else [card for card in cards if tenant.service_class.allows(card.id)]

    def on_refusal(self, call: ClientRequest, refusal: RequestRefused, endpoint: str, arrived_s: float) -> None:
        self._meter.on_refusal(call.tenant, refusal)


def cap_priority(prompt: Prompt, tenant: Tenant) -> None:
    """Limit the `priority` in the body, which engines use, to the most urgent that the tenant may use. A priority
    that cannot be read here, but perhaps by an engine, is replaced as well.
    """
    highest = tenant.service_class.config.highest_priority
    if highest is None or (prompt.priority is not None and prompt.priority >= highest):
        return
    if prompt.priority is not None or (prompt.is_object and "priority" in open_body(prompt.body, ()).members):
        prompt.priority = highest
        prompt.body = set_members(prompt.body, {"priority": Raw(b"%d" % highest)})
